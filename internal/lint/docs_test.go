package lint

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// concurrencyWords are the ways to say who may use a type at the same time.
var concurrencyWords = regexp.MustCompile(`(?i)concurren|goroutine|plain value|plain data|immutable|belongs to`)

// checkPackageDoc wants a manual in doc.go; of commands and of the packages of the examples, a package comment anywhere.
func checkPackageDoc(dir string, files []*source) []problem {
	anywhere := files[0].file.Name.Name == "main" || inModule(dir, "examples")
	documented := slices.ContainsFunc(files, func(s *source) bool {
		return s.file.Doc.Text() != "" && (anywhere || strings.HasSuffix(s.name, "/doc.go"))
	})
	if documented {
		return nil
	}
	where := "doc.go"
	if anywhere {
		where = "its files"
	}
	return []problem{{file: dir, text: "no package comment in " + where}}
}

// checkDocs wants a comment for everything exported, and for structs and interfaces a word on concurrency in it.
//
// Where constants, variables, fields or methods of an interface are listed, a comment also covers the lines directly below
// it. A field needs none either where the comment of its struct names it.
func checkDocs(s *source) []problem {
	if !s.isGo() || s.isTest() || s.file.Name.Name == "main" {
		return nil
	}
	c := &docCheck{source: s}
	for _, decl := range s.file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() && exportedReceiver(d) && d.Doc.Text() == "" {
				c.missing(d.Name.Pos(), "func", d.Name.Name)
			}
		case *ast.GenDecl:
			c.group(d)
		}
	}
	return c.out
}

type docCheck struct {
	*source
	out []problem
}

func (c *docCheck) missing(pos token.Pos, kind, name string) {
	c.out = append(c.out, c.at(pos, "%s %s has no comment", kind, name))
}

func (c *docCheck) line(pos token.Pos) int { return c.fset.Position(pos).Line }

func exportedReceiver(f *ast.FuncDecl) bool {
	if f.Recv == nil {
		return true
	}
	e := f.Recv.List[0].Type
	if star, ok := e.(*ast.StarExpr); ok {
		e = star.X
	}
	switch x := e.(type) {
	case *ast.IndexExpr:
		e = x.X
	case *ast.IndexListExpr:
		e = x.X
	}
	id, ok := e.(*ast.Ident)
	return ok && id.IsExported()
}

func (c *docCheck) group(d *ast.GenDecl) {
	covered := 0 // the last line that a comment covers
	for _, spec := range d.Specs {
		switch spec := spec.(type) {
		case *ast.ValueSpec:
			doc := spec.Doc.Text() + spec.Comment.Text() + d.Doc.Text()
			if doc == "" && c.line(spec.Pos()) != covered+1 {
				for _, name := range spec.Names {
					if name.IsExported() {
						c.missing(name.Pos(), d.Tok.String(), name.Name)
					}
				}
				continue
			}
			covered = c.line(spec.End())
		case *ast.TypeSpec:
			if !spec.Name.IsExported() {
				continue
			}
			doc := spec.Doc.Text()
			if doc == "" && !d.Lparen.IsValid() {
				doc = d.Doc.Text()
			}
			if doc == "" {
				c.missing(spec.Name.Pos(), "type", spec.Name.Name)
			}
			c.members(spec, doc)
		}
	}
}

func (c *docCheck) members(spec *ast.TypeSpec, doc string) {
	var fields *ast.FieldList
	kind := "field"
	switch t := spec.Type.(type) {
	case *ast.StructType:
		fields = t.Fields
	case *ast.InterfaceType:
		fields, kind = t.Methods, "method"
	default:
		return
	}
	if doc != "" && !concurrencyWords.MatchString(doc) {
		c.out = append(c.out, c.at(spec.Name.Pos(), "type %s: the comment does not say who may use it concurrently", spec.Name.Name))
	}
	covered := 0
	for _, f := range fields.List {
		if f.Doc.Text()+f.Comment.Text() != "" || c.line(f.Pos()) == covered+1 {
			covered = c.line(f.End())
			continue
		}
		for _, name := range f.Names {
			if name.IsExported() && !names(doc, name.Name) {
				c.missing(name.Pos(), kind, spec.Name.Name+"."+name.Name)
			}
		}
	}
}

// names says whether the text has the word, in capitals or not.
func names(text, word string) bool {
	words := strings.FieldsFunc(text, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '_' })
	return slices.ContainsFunc(words, func(w string) bool { return strings.EqualFold(w, word) })
}

func TestPackageDocs(t *testing.T) { clean(t, eachFolder(checkPackageDoc)) }

func TestDocs(t *testing.T) { clean(t, eachFile(checkDocs)) }

func TestPackageDocsCanFail(t *testing.T) {
	provable(t, eachFolder(checkPackageDoc), []bad{
		{"-- score/doc.go --\n// Package score is.\npackage score\n", ""},
		{"-- score/a.go --\n// Package score is.\npackage score\n", "score: no package comment in doc.go"},
		{"-- score/doc.go --\npackage score\n", "no package comment in doc.go"},
		{"-- examples/x/main.go --\n// Command x is.\npackage main\n", ""},
		{"-- examples/x/internal/y/a.go --\n// Package y is.\npackage y\n", ""},
		{"-- internal/y/a.go --\n// Package y is.\npackage y\n", "internal/y: no package comment in doc.go"},
		{"-- examples/x/main.go --\npackage main\n", "no package comment in its files"},
	})
}

func TestDocsCanFail(t *testing.T) {
	file := func(body string) string { return fmt.Sprintf("-- score/a.go --\npackage p\n%s\n", body) }
	provable(t, eachFile(checkDocs), []bad{
		{file("// F does.\nfunc F() {}"), ""},
		{file("func F() {}"), "score/a.go:2: func F has no comment"},
		{file("func f() {}\nfunc (t t) F() {}"), ""},
		{file("func (t *T[K]) F() {}"), "func F has no comment"},
		{file("func (t *t[K, V]) F() {}"), ""},
		{file("type T int"), "type T has no comment"},
		{file("type (\n// T is.\nT int\nU int\n)"), "type U has no comment"},
		{file("// These are types.\ntype (\nT int\n)"), "type T has no comment"},
		{file("const A = 1"), "const A has no comment"},
		{file("const A = 1 // one"), ""},
		{file("// The constants.\nconst (\nA = 1\n\nB = 2\n)"), ""},
		{file("const (\n// A, B: both.\nA = 1\nB = 2\n)"), ""},
		{file("const (\n// A is.\nA = 1\n\nB = 2\n)"), "const B"},
		{file("var A = 1"), "var A"},
		{file("// T is a plain value.\ntype T struct {\n// A, B are.\nA int\nB int\n}"), ""},
		{file("// T is a plain value.\ntype T struct {\n// A is.\nA int\n\nB int\n}"), "field T.B"},
		{file("// T is a plain value: q below R.\ntype T struct {\nQ, R int\n}"), ""},
		{file("// T is a plain value: Query.\ntype T struct {\nQ int\n}"), "field T.Q"},
		{file("// T is a plain value.\ntype T struct {\na int\nsync.Mutex\n}"), ""},
		{file("// T is.\ntype T struct{}"), "who may use it concurrently"},
		{file("// T may be used from any goroutine.\ntype T struct{}"), ""},
		{file("// T is.\ntype T interface{}"), "who may use it concurrently"},
		{file("// T is immutable.\ntype T interface {\nM()\n}"), "method T.M has no comment"},
		{"-- score/a_test.go --\npackage p\nfunc F() {}\n", ""},
	})
}
