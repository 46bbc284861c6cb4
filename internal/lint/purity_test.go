package lint

import (
	"go/ast"
	"go/token"
	"path"
	"strconv"
	"strings"
	"testing"
)

// forbiddenCalls are what ties a package to its process, by import path and name.
var (
	environment = map[string][]string{
		"os": {"Getenv", "LookupEnv", "Environ", "ExpandEnv", "Setenv", "Unsetenv"},
	}
	clocks = map[string][]string{
		"time": {"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick"},
	}
)

// impureImports are sources of chance and of I/O, with everything below them.
var impureImports = []string{"math/rand", "crypto/rand", "hash/maphash", "net", "os", "syscall"}

// checkGlobals holds every package that hosts can import: no state and no work at package level, no environment.
//
// A package-level variable must be one of: _; an error made by errors.New; an array of fixed length, not of locks or
// atomics, or a []byte("..."). Nothing in the package may assign to it or slice it, and nothing in a core package take its
// address.
func checkGlobals(dir string, files []*source) []problem {
	if !isLibrary(dir) {
		return nil
	}
	var out []problem
	tables := map[string]bool{}
	for _, s := range files {
		for _, decl := range s.file.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil && d.Name.Name == "init" {
					out = append(out, s.at(d.Pos(), "func init: nothing runs before the host calls"))
				}
			case *ast.GenDecl:
				if d.Tok == token.VAR {
					out = append(out, checkVars(s, d, tables)...)
				}
			}
		}
		out = append(out, forbid(s, environment, "no environment")...)
	}
	for _, s := range files {
		out = append(out, writesTo(s, tables, isCore(dir))...)
	}
	return out
}

func checkVars(s *source, d *ast.GenDecl, tables map[string]bool) []problem {
	var out []problem
	for _, spec := range d.Specs {
		v := spec.(*ast.ValueSpec)
		for i, name := range v.Names {
			var value ast.Expr
			if i < len(v.Values) {
				value = v.Values[i]
			}
			switch {
			case name.Name == "_" || isCall(value, "errors", "New"):
			case isFixed(value):
			default:
				out = append(out, s.at(name.Pos(), "var %s: no mutable state at package level", name.Name))
				continue
			}
			tables[name.Name] = true
		}
	}
	return out
}

func isCall(e ast.Expr, pkg, name string) bool {
	call, ok := e.(*ast.CallExpr)
	return ok && isSelector(call.Fun, pkg, name)
}

func isSelector(e ast.Expr, pkg, name string) bool {
	sel, ok := e.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	x, ok := sel.X.(*ast.Ident)
	return ok && x.Name == pkg && sel.Sel.Name == name
}

// isFixed says that the value is an array, or bytes of a string constant.
func isFixed(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.CompositeLit:
		array, ok := e.Type.(*ast.ArrayType)
		if !ok || array.Len == nil {
			return false
		}
		elem, ok := array.Elt.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		pkg, ok := elem.X.(*ast.Ident)
		return ok && pkg.Name != "sync" && pkg.Name != "atomic"
	case *ast.CallExpr:
		array, ok := e.Fun.(*ast.ArrayType)
		if !ok || array.Len != nil || len(e.Args) != 1 {
			return false
		}
		lit, ok := e.Args[0].(*ast.BasicLit)
		return ok && lit.Kind == token.STRING
	}
	return false
}

// base is the identifier that an expression like a[i].b starts with; nil = none.
func base(e ast.Expr) *ast.Ident {
	for {
		switch x := e.(type) {
		case *ast.Ident:
			return x
		case *ast.IndexExpr:
			e = x.X
		case *ast.SelectorExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		default:
			return nil
		}
	}
}

// writesTo finds what may change one of the variables. It knows no scopes: a local variable of the same name counts too,
// and is better renamed. Unless addresses are forbidden, a large element may be read through a pointer.
func writesTo(s *source, names map[string]bool, addresses bool) []problem {
	var out []problem
	say := func(e ast.Expr, what string) {
		if id := base(e); id != nil && id.Name != "_" && names[id.Name] {
			out = append(out, s.at(id.Pos(), "%s %s, a package-level variable", what, id.Name))
		}
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if n.Tok != token.DEFINE {
				for _, e := range n.Lhs {
					say(e, "assigns to")
				}
			}
		case *ast.IncDecStmt:
			say(n.X, "assigns to")
		case *ast.UnaryExpr:
			if n.Op == token.AND && addresses {
				say(n.X, "takes the address of")
			}
		case *ast.SliceExpr:
			say(n.X, "slices")
		}
		return true
	})
	return out
}

// localNames maps the names under which a file knows its imports to their paths.
func localNames(s *source) map[string]string {
	out := map[string]string{}
	for _, spec := range s.file.Imports {
		pkg := importPath(spec)
		name := path.Base(pkg)
		if _, err := strconv.Atoi(strings.TrimPrefix(name, "v")); err == nil && strings.HasPrefix(name, "v") {
			name = path.Base(path.Dir(pkg))
		}
		if spec.Name != nil {
			name = spec.Name.Name
		}
		out[name] = pkg
	}
	return out
}

// forbid finds uses of names of other packages. A dot import would hide them and is a problem itself.
func forbid(s *source, names map[string][]string, why string) []problem {
	var out []problem
	imports := localNames(s)
	if pkg := imports["."]; names[pkg] != nil {
		out = append(out, s.at(s.file.Package, "dot import of %s hides what is used", pkg))
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		x, ok := sel.X.(*ast.Ident)
		if !ok {
			return true
		}
		for _, name := range names[imports[x.Name]] {
			if sel.Sel.Name == name {
				out = append(out, s.at(sel.Pos(), "%s.%s: %s", imports[x.Name], name, why))
			}
		}
		return true
	})
	return out
}

// checkPure holds the core packages: the host owns threads, time, chance and I/O. A method Run is called to have its own
// goroutine; router may name time.Now once, as the default clock.
func checkPure(dir string, files []*source) []problem {
	if !isCore(dir) {
		return nil
	}
	var out []problem
	defaults := map[string]int{}
	for _, s := range files {
		for _, spec := range s.file.Imports {
			if pkg := importPath(spec); inAny(pkg, impureImports) {
				out = append(out, s.at(spec.Pos(), "imports %s: no chance and no I/O of its own", pkg))
			}
		}
		for _, p := range forbid(s, clocks, "no clock of its own") {
			if name, _, _ := strings.Cut(p.text, ":"); dir == "router" && (name == "time.Now" || name == "time.NewTimer") {
				if defaults[name]++; defaults[name] == 1 {
					continue
				}
			}
			out = append(out, p)
		}
		for _, decl := range s.file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv != nil && f.Name.Name == "Run" {
				continue
			}
			ast.Inspect(decl, func(n ast.Node) bool {
				if g, ok := n.(*ast.GoStmt); ok {
					out = append(out, s.at(g.Pos(), "go statement outside a method Run"))
				}
				return true
			})
		}
	}
	return out
}

func TestGlobals(t *testing.T) { clean(t, eachFolder(checkGlobals)) }

func TestPurity(t *testing.T) { clean(t, eachFolder(checkPure)) }

func TestGlobalsCanFail(t *testing.T) {
	file := func(body string) string { return "-- router/httptransport/a.go --\npackage p\n" + body + "\n" }
	provable(t, eachFolder(checkGlobals), []bad{
		{file(`var _ I = (*T)(nil)`), ""},
		{file(`var ErrA = errors.New("p: a")`), ""},
		{file(`var names = [...]string{"a"}; func f(i int) string { return names[i] }`), ""},
		{file(`var key = []byte("data:")`), ""},
		{file(`var n int`), "router/httptransport/a.go:2: var n: no mutable state"},
		{file(`var m = map[string]int{}`), "var m"},
		{file(`var names = []string{"a"}`), "var names"},
		{file(`var a, b = errors.New("p: a"), fmt.Errorf("b")`), "var b"},
		{file(`var now = time.Now`), "var now"},
		{file(`var names = [...]string{"a"}; func f() { names[0] = "b" }`), "assigns to names"},
		{file(`var counts = [2]T{}; func f() { counts[0].n++ }`), "assigns to counts"},
		{file(`var names = [...]string{"a"}; func f() []string { return names[:] }`), "slices names"},
		{file(`var names = [...]string{"a"}; func f() any { return &names[0] }`), ""},
		{"-- score/a.go --\npackage p\nvar names = [...]string{\"a\"}\nfunc f() any { return &names[0] }\n", "takes the address of names"},
		{file(`var counts = [2]atomic.Int64{}`), "var counts"},
		{file(`var ErrA = errors.New("p: a"); func f() { ErrA = nil }`), "assigns to ErrA"},
		{file(`var names = [...]string{"a"}`) + "-- router/httptransport/b.go --\npackage p\nfunc f() { names[0] = \"\" }\n", "b.go:2: assigns to names"},
		{file(`func init() {}`), "func init"},
		{file(`func (t T) init() {}`), ""},
		{file(`import "os"; var _ = os.Getenv("HOME")`), "os.Getenv: no environment"},
		{file(`import env "os"; func f() { env.LookupEnv("HOME") }`), "os.LookupEnv"},
		{file(`import . "os"; func f() { Getenv("HOME") }`), "dot import of os"},
		{"-- internal/sim/a.go --\npackage sim\nvar n int\n", ""},
	})
}

func TestPurityCanFail(t *testing.T) {
	file := func(dir, body string) string { return "-- " + dir + "/a.go --\npackage p\n" + body + "\n" }
	provable(t, eachFolder(checkPure), []bad{
		{file("router", `import "math/rand/v2"`), "router/a.go:2: imports math/rand/v2"},
		{file("router", `import "net/http"`), "imports net/http"},
		{file("router", `import "netip"`), ""},
		{file("score", `import "os"`), "imports os"},
		{file("reserve", `import "time"; var _ = time.Now()`), "time.Now: no clock"},
		{file("reserve", `import clock "time"; func f() { clock.Sleep(1) }`), "time.Sleep"},
		{file("reserve", `import "time"; var _ = time.Second`), ""},
		{file("router", `import "time"; var _ = time.Now`), ""},
		{file("router", `import "time"; var a, b = time.Now, time.Now`), "time.Now"},
		{file("router", `import "time"; var _ = time.Tick`), "time.Tick"},
		{file("admission", `func f() { go f() }`), "a.go:2: go statement"},
		{file("admission", `func Run() { go Run() }`), "go statement"},
		{file("admission", `func (q Q) Run() { func() { go f() }() }`), ""},
		{file("router/httptransport", `import "net/http"`), ""},
		{"-- router/a_test.go --\npackage p\nfunc f() { go f() }\n", ""},
	})
}
