package lint

import (
	"go/ast"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// allowed is what a package may import beside the standard library. A module stands for its packages too.
type allowed struct {
	siblings []string // folders of this repository, exactly
	modules  []string
}

var (
	coreModules = []string{"github.com/cespare/xxhash/v2", "github.com/google/btree", "golang.org/x/sync"}
	testModules = []string{
		"github.com/stretchr/testify", "pgregory.net/rapid", "github.com/cockroachdb/datadriven", "go.uber.org/goleak",
	}
	groundFloor = []string{"telemetry", "prefix", "reserve", "admission"}
)

// libraryImports has a row for every package that hosts can import.
var libraryImports = map[string]allowed{
	"telemetry": {modules: coreModules},
	"prefix":    {modules: coreModules},
	"reserve":   {modules: coreModules},
	"admission": {modules: coreModules},
	"score":     {siblings: []string{"telemetry"}, modules: coreModules},
	"router":    {siblings: append([]string{"score"}, groundFloor...), modules: coreModules},

	"telemetry/engine": {
		siblings: []string{"telemetry"},
		modules:  []string{"github.com/prometheus/common", "github.com/prometheus/client_model"},
	},
	"telemetry/kvevents": {
		siblings: []string{"prefix"},
		modules:  []string{"github.com/cespare/xxhash/v2", "github.com/go-zeromq/zmq4", "github.com/tinylib/msgp"},
	},
	"score/calibrate": {
		siblings: []string{"router", "score", "telemetry"},
		modules:  []string{"gonum.org/v1/gonum"},
	},
	"telemetry/scrape":     {siblings: []string{"telemetry", "telemetry/engine"}},
	"router/httptransport": {siblings: []string{"router", "prefix", "telemetry", "telemetry/engine"}},
	"router/promexport": {
		siblings: []string{"router", "telemetry"},
		modules:  []string{"github.com/prometheus/client_golang", "github.com/prometheus/common"},
	},
}

// inModule says whether the package is the module or inside it.
func inModule(pkg, mod string) bool { return pkg == mod || strings.HasPrefix(pkg, mod+"/") }

func inAny(pkg string, mods []string) bool {
	return slices.ContainsFunc(mods, func(mod string) bool { return inModule(pkg, mod) })
}

func isStandard(pkg string) bool {
	first, _, _ := strings.Cut(pkg, "/")
	return !strings.Contains(first, ".") && pkg != "C"
}

func importPath(spec *ast.ImportSpec) string {
	pkg, err := strconv.Unquote(spec.Path.Value)
	if err != nil {
		return spec.Path.Value
	}
	return pkg
}

// checkImports holds library packages to libraryImports, and the rest of the root module off the examples. Tests may use
// the test modules too, and a library's tests whatever of this repository does not turn the layers upside down.
func checkImports(s *source) []problem {
	if !s.isGo() {
		return nil
	}
	var out []problem
	dir := s.dir()
	rules, known := libraryImports[dir]
	if isLibrary(dir) && !known {
		return []problem{s.at(s.file.Package, "package %s has no row in libraryImports", dir)}
	}
	for _, spec := range s.file.Imports {
		pkg := importPath(spec)
		sibling, ours := strings.CutPrefix(pkg, module+"/")
		say := func(why string) {
			out = append(out, s.at(spec.Pos(), "%s imports %s: %s", dir, pkg, why))
		}
		switch {
		case ours && inModule(sibling, "examples"):
			if !inModule(dir, "examples") {
				say("only examples import examples")
			}
		case !isLibrary(dir) || isStandard(pkg):
		case ours && s.isTest():
			if sibling != dir && inModule(sibling, "router") && !inModule(dir, "router") && !slices.Contains(rules.siblings, "router") {
				say("nothing below router imports router")
			}
		case ours:
			if !slices.Contains(rules.siblings, sibling) {
				say("it may import of this repository " + orNothing(rules.siblings))
			}
		case s.isTest() && inAny(pkg, testModules):
		case !inAny(pkg, rules.modules):
			say("it may import of other modules " + orNothing(rules.modules))
		}
	}
	return out
}

func orNothing(names []string) string {
	if len(names) == 0 {
		return "nothing"
	}
	return strings.Join(names, ", ")
}

func TestImports(t *testing.T) { clean(t, eachFile(checkImports)) }

func TestImportsCanFail(t *testing.T) {
	file := func(name, pkg string) string { return "-- " + name + " --\npackage p\nimport \"" + pkg + "\"\n" }
	provable(t, eachFile(checkImports), []bad{
		{file("prefix/a.go", "fmt"), ""},
		{file("prefix/a.go", "github.com/cespare/xxhash/v2"), ""},
		{file("prefix/a.go", "golang.org/x/sync/singleflight"), ""},
		{file("prefix/a.go", "golang.org/x/syncother"), "prefix/a.go:2: prefix imports golang.org/x/syncother"},
		{file("prefix/a.go", "github.com/stretchr/testify/require"), "other modules"},
		{file("prefix/a_test.go", "github.com/stretchr/testify/require"), ""},
		{file("prefix/a_test.go", "github.com/prometheus/common/model"), "other modules"},
		{file("prefix/a.go", "C"), "imports C"},
		{file("prefix/a.go", module+"/telemetry"), "of this repository nothing"},
		{file("prefix/a_test.go", module+"/router"), "nothing below router"},
		{file("reserve/a.go", module+"/router"), "of this repository nothing"},
		{file("score/a.go", module+"/telemetry"), ""},
		{file("score/a.go", module+"/telemetry/engine"), "may import of this repository telemetry"},
		{file("score/a.go", module+"/reserve"), "may import of this repository telemetry"},
		{file("router/a.go", module+"/internal/sim"), "may import of this repository"},
		{file("router/a_test.go", module+"/internal/sim"), ""},
		{file("router/a.go", module+"/router/httptransport"), "may import of this repository"},
		{file("telemetry/engine/a.go", "github.com/prometheus/common/expfmt"), ""},
		{file("telemetry/a.go", "github.com/prometheus/common/expfmt"), "other modules"},
		{file("router/httptransport/a.go", "github.com/prometheus/client_golang/prometheus"), "other modules nothing"},
		{file("router/promexport/a.go", "github.com/prometheus/client_golang/prometheus"), ""},
		{file("router/extra/a.go", "fmt"), "package router/extra has no row"},
		{file("internal/sim/a.go", "github.com/anything/else"), ""},
		{file("internal/sim/a.go", module+"/examples/internal/embedded"), "only examples"},
		{file("examples/gateway/a.go", module+"/examples/internal/embedded"), ""},
	})
}
