// Package lint holds the rules of this repository that no compiler checks, as tests. Each rule is a function from a source
// to problems; one test runs it over the tree and another over small bad sources, so that a rule that has gone blind shows.
package lint

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/isobar-go/isobar"

// root is the top of the repository, seen from this folder.
const root = "../.."

// corePackages must be small, pure and synchronous. The first four do not know each other.
var corePackages = []string{"telemetry", "prefix", "reserve", "admission", "score", "router"}

func isCore(dir string) bool { return slices.Contains(corePackages, dir) }

// isLibrary says that hosts can import the package in dir.
func isLibrary(dir string) bool {
	top, _, _ := strings.Cut(dir, "/")
	return isCore(top) && !slices.Contains(strings.Split(dir, "/"), "internal")
}

// source is one text file of the repository.
type source struct {
	name string // from the root, with slashes
	text string

	// Of Go files only.
	fset *token.FileSet
	file *ast.File
}

func (s *source) dir() string  { return path.Dir(s.name) }
func (s *source) isGo() bool   { return s.file != nil }
func (s *source) isTest() bool { return strings.HasSuffix(s.name, "_test.go") }

// problem is a breach of a rule.
type problem struct {
	file string
	line int // 0 = of the file or folder as a whole
	text string
}

func (p problem) String() string {
	if p.line == 0 {
		return fmt.Sprintf("%s: %s", p.file, p.text)
	}
	return fmt.Sprintf("%s:%d: %s", p.file, p.line, p.text)
}

func (s *source) at(pos token.Pos, format string, args ...any) problem {
	return problem{s.name, s.fset.Position(pos).Line, fmt.Sprintf(format, args...)}
}

// parse makes a source of a file's text.
func parse(name, text string) (*source, error) {
	s := &source{name: name, text: text}
	if path.Ext(name) != ".go" {
		return s, nil
	}
	s.fset = token.NewFileSet()
	var err error
	s.file, err = parser.ParseFile(s.fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
	return s, err
}

// textKinds are the extensions of files that are read. Others hold data, or what the go command writes.
var textKinds = []string{".go", ".md", ".mod", ".case", ".work"}

func isText(name string) bool {
	return slices.Contains(textKinds, path.Ext(name)) || path.Dir(name) == ".ci"
}

var loadTree = sync.OnceValues(func() ([]*source, error) {
	var out []*source
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		name := filepath.ToSlash(rel)
		if entry.IsDir() {
			if strings.HasPrefix(entry.Name(), ".") && name != "." && name != ".ci" {
				return filepath.SkipDir
			}
			return nil
		}
		if !entry.Type().IsRegular() || !isText(name) {
			return nil
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		s, err := parse(name, string(text))
		if err != nil {
			return err
		}
		out = append(out, s)
		return nil
	})
	return out, err
})

// tree returns every text file of the repository.
func tree(t *testing.T) []*source {
	t.Helper()
	sources, err := loadTree()
	if err != nil {
		t.Fatal(err)
	}
	return sources
}

// folders groups Go files by folder, tests left out.
func folders(sources []*source) map[string][]*source {
	out := map[string][]*source{}
	for _, s := range sources {
		if s.isGo() && !s.isTest() {
			out[s.dir()] = append(out[s.dir()], s)
		}
	}
	return out
}

// eachFile applies a rule of single files.
func eachFile(rule func(*source) []problem) func([]*source) []problem {
	return func(sources []*source) []problem {
		var out []problem
		for _, s := range sources {
			out = append(out, rule(s)...)
		}
		return out
	}
}

// eachFolder applies a rule of packages.
func eachFolder(rule func(dir string, files []*source) []problem) func([]*source) []problem {
	return func(sources []*source) []problem {
		var out []problem
		for dir, files := range folders(sources) {
			out = append(out, rule(dir, files)...)
		}
		return out
	}
}

// clean fails the test with every problem of the tree.
func clean(t *testing.T, rule func([]*source) []problem) {
	t.Helper()
	problems := rule(tree(t))
	slices.SortFunc(problems, func(a, b problem) int { return strings.Compare(a.String(), b.String()) })
	for _, p := range problems {
		t.Error(p)
	}
}

// bad is a piece of a repository, and what a rule must say of it. Files are "-- name --" lines, each followed by its text.
type bad struct {
	files string
	want  string // part of the only problem; "" = there must be none
}

// provable fails the test where the rule does not say what is wanted.
func provable(t *testing.T, rule func([]*source) []problem, table []bad) {
	t.Helper()
	for _, tc := range table {
		var sources []*source
		for part := range strings.SplitSeq(strings.TrimPrefix(tc.files, "-- "), "\n-- ") {
			name, text, ok := strings.Cut(part, " --\n")
			if !ok {
				t.Fatalf("no file name in %q", part)
			}
			s, err := parse(name, text)
			if err != nil {
				t.Fatal(err)
			}
			sources = append(sources, s)
		}
		got := rule(sources)
		switch {
		case tc.want == "" && len(got) > 0:
			t.Errorf("%s\nwant no problem, got %v", tc.files, got)
		case tc.want != "" && (len(got) != 1 || !strings.Contains(got[0].String(), tc.want)):
			t.Errorf("%s\nwant %q, got %v", tc.files, tc.want, got)
		}
	}
}

// A walk that finds nothing would let every rule pass.
func TestTreeIsSeen(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range tree(t) {
		seen[s.dir()] = true
		if s.isTest() {
			seen["tests"] = true
		}
	}
	for _, dir := range append([]string{".", ".ci", "tests", "examples/gateway", "internal/lint"}, corePackages...) {
		if !seen[dir] {
			t.Errorf("%s: no file seen", dir)
		}
	}
}
