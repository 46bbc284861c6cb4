package lint

import (
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// topLevel is all that lies at the top of the repository, beside what begins with a dot.
var topLevel = []string{
	"router", "score", "telemetry", "reserve", "admission", "prefix", "examples", "internal",
	"go.mod", "go.sum", "go.work", "go.work.sum", "README.md", "LICENSE", "CHANGELOG.md",
}

// rootModules are the modules that the root module may require itself. Whatever is heavier goes into a nested module.
var rootModules = slices.Concat(coreModules, testModules, []string{"github.com/prometheus/common", "github.com/prometheus/client_model"})

// checkTop finds entries that do not belong at the top; ignored are patterns of file names, as in .gitignore.
func checkTop(entries, ignored []string) []problem {
	var out []problem
	for _, name := range entries {
		skip := strings.HasPrefix(name, ".") || slices.ContainsFunc(ignored, func(pattern string) bool {
			ok, err := path.Match(strings.TrimPrefix(pattern, "/"), name)
			return ok && err == nil
		})
		if !skip && !slices.Contains(topLevel, name) {
			out = append(out, problem{file: name, text: "does not belong at the top of the repository"})
		}
	}
	return out
}

var (
	goDirective = regexp.MustCompile(`(?m)^go (\S+)$`)
	goVersion   = regexp.MustCompile(`^1\.26(\.\d+)?$`)
	requirement = regexp.MustCompile(`(?m)^\s*(?:require )?([\w.\-]+\.[\w\-]+/\S+) v\S+$`) // direct: without "// indirect"
	used        = regexp.MustCompile(`(?m)^\s*(?:use )?(\.\S*)$`)
)

// checkModules holds go.mod files to one Go version, the root module to few requirements, and go.work to all modules.
func checkModules(sources []*source) []problem {
	var out []problem
	var work *source
	modules := []string{}
	for _, s := range sources {
		switch path.Base(s.name) {
		case "go.work":
			work = s
		case "go.mod":
			modules = append(modules, s.dir())
		default:
			continue
		}
		if m := goDirective.FindStringSubmatch(s.text); m == nil || !goVersion.MatchString(m[1]) {
			out = append(out, problem{file: s.name, text: "the go directive is not 1.26"})
		}
		if s.name == "go.mod" {
			for _, m := range requirement.FindAllStringSubmatch(s.text, -1) {
				if !slices.Contains(rootModules, m[1]) {
					out = append(out, problem{file: s.name, text: "requires " + m[1] + ", which belongs in a nested module"})
				}
			}
		}
	}
	if work == nil {
		return append(out, problem{file: "go.work", text: "not there"})
	}
	var uses []string
	for _, m := range used.FindAllStringSubmatch(work.text, -1) {
		uses = append(uses, path.Clean(m[1]))
	}
	for _, dir := range modules {
		if !slices.Contains(uses, dir) {
			out = append(out, problem{file: work.name, text: "does not use the module in " + dir})
		}
	}
	for _, dir := range uses {
		if !slices.Contains(modules, dir) {
			out = append(out, problem{file: work.name, text: "uses " + dir + ", which has no go.mod"})
		}
	}
	return out
}

func TestTop(t *testing.T) {
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	ignored, err := os.ReadFile(root + "/.gitignore")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range checkTop(names, strings.Fields(string(ignored))) {
		t.Error(p)
	}
}

func TestTopCanFail(t *testing.T) {
	got := checkTop([]string{".ci", "router", "README.md", "docs", "notes.md", "router.test"}, []string{"*.test", "/notes.tmp"})
	if len(got) != 2 || got[0].file != "docs" || got[1].file != "notes.md" {
		t.Errorf("got %v", got)
	}
}

func TestModules(t *testing.T) { clean(t, checkModules) }

func TestModulesCanFail(t *testing.T) {
	mod := "-- go.mod --\nmodule m\n\ngo 1.26.0\n"
	work := "-- go.work --\ngo 1.26\n\nuse (\n\t.\n\t./examples\n)\n"
	examples := "-- examples/go.mod --\nmodule m/examples\n\ngo 1.26\n\nrequire example.com/heavy v1.0.0\n"
	provable(t, checkModules, []bad{
		{mod + work + examples, ""},
		{"-- go.mod --\nmodule m\n\ngo 1.25\n" + work + examples, "go.mod: the go directive"},
		{"-- go.mod --\nmodule m\n" + work + examples, "go.mod: the go directive"},
		{mod + "\nrequire (\n\tpgregory.net/rapid v1.3.0\n\tgoogle.golang.org/protobuf v1.36.12 // indirect\n)\n" + work + examples, ""},
		{mod + "\nrequire (\n\texample.com/heavy v1.0.0\n)\n" + work + examples, "requires example.com/heavy"},
		{mod + "\nrequire example.com/heavy v1.0.0\n" + work + examples, "requires example.com/heavy"},
		{mod + work, "uses examples, which has no go.mod"},
		{mod + work + examples + "-- router/promexport/go.mod --\nmodule m/x\n\ngo 1.26\n", "does not use the module in router/promexport"},
		{mod, "go.work: not there"},
	})
}
