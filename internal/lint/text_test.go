package lint

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

const (
	maxLines   = 600 // of a file that is no test
	maxColumns = 140 // of a line, a tab counting as one column
	maxInTests = 200 // of a line of a test, where tables are easier to read with a case in each line
)

// checkSize bounds files and lines. Lines inside a raw string are data and may be of any length.
func checkSize(s *source) []problem {
	if !s.isGo() {
		return nil
	}
	var out []problem
	lines := strings.Split(strings.TrimSuffix(s.text, "\n"), "\n")
	if len(lines) > maxLines && !s.isTest() {
		out = append(out, problem{s.name, 0, fmt.Sprintf("%d lines, more than %d", len(lines), maxLines)})
	}
	raw := map[int]bool{}
	ast.Inspect(s.file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			first, last := s.fset.Position(lit.Pos()).Line, s.fset.Position(lit.End()).Line
			for line := first; line <= last && first != last; line++ {
				raw[line] = true
			}
		}
		return true
	})
	most := maxColumns
	if s.isTest() {
		most = maxInTests
	}
	for i, line := range lines {
		if n := utf8.RuneCountInString(line); n > most && !raw[i+1] {
			out = append(out, problem{s.name, i + 1, fmt.Sprintf("%d columns, more than %d", n, most)})
		}
	}
	return out
}

// strayWords are what belongs to a workplace and not to the repository.
var strayWords = []struct {
	pattern *regexp.Regexp
	why     string
	where   func(*source) bool // nil = everywhere
}{
	{regexp.MustCompile(`(^|[^\w./])/(work|root|home|Users)/`), "a path of one machine", nil},
	// The checks and some tests read cases from beside the repository, where there are any.
	{regexp.MustCompile(`\.\./shared`), "a folder outside the repository", func(s *source) bool { return !s.isTest() && s.name != ".ci/run" }},
	{regexp.MustCompile(`(?i)\bissues? ?#|\bissues? \d|(^|[\s(])#\d+\b`), "an issue's number", func(s *source) bool { return s.isGo() }},
	{regexp.MustCompile(`\b(TODO|FIXME|XXX)\b`), "work left over", nil},
	{regexp.MustCompile(`(?i)\b(the )?design doc(ument)?\b|\bDESIGN\.md\b`), "a document outside the repository", nil},
}

// checkWords finds stray words. This folder names them itself.
func checkWords(s *source) []problem {
	if s.dir() == "internal/lint" {
		return nil
	}
	var out []problem
	number := 0
	for line := range strings.Lines(s.text) {
		number++
		for _, w := range strayWords {
			if w.where != nil && !w.where(s) {
				continue
			}
			if found := w.pattern.FindString(line); found != "" {
				out = append(out, problem{s.name, number, fmt.Sprintf("%q: %s", strings.TrimSpace(found), w.why)})
			}
		}
	}
	return out
}

func TestSizes(t *testing.T) { clean(t, eachFile(checkSize)) }

func TestWords(t *testing.T) { clean(t, eachFile(checkWords)) }

func TestSizesCanFail(t *testing.T) {
	long := strings.Repeat("ä", maxColumns)
	provable(t, eachFile(checkSize), []bad{
		{"-- score/a.go --\npackage p" + strings.Repeat("\n", maxLines), ""},
		{"-- score/a.go --\npackage p" + strings.Repeat("\n", maxLines+1), "score/a.go: 601 lines"},
		{"-- score/a_test.go --\npackage p" + strings.Repeat("\n", 2*maxLines), ""},
		{"-- score/a.go --\npackage p\n//" + long[4:] + "\n", ""},
		{"-- score/a.go --\npackage p\n//" + long + "\n", "score/a.go:2: 142 columns"},
		{"-- score/a_test.go --\npackage p\n//" + long + "\n", ""},
		{"-- score/a_test.go --\npackage p\nconst s = `\n" + long + long + "\n`\n", ""},
		{"-- score/a_test.go --\npackage p\nconst s = `" + long + long + "`\n", "columns"},
		{"-- README.md --\n" + long + long + "\n", ""},
	})
}

func TestWordsCanFail(t *testing.T) {
	file := func(name, line string) string { return "-- " + name + " --\npackage p\n" + line + "\n" }
	provable(t, eachFile(checkWords), []bad{
		{file("score/a.go", `// a session's root/load is at /v1/root/x`), ""},
		{file("score/a.go", `// see /root/main`), `score/a.go:2: "/root/": a path of one machine`},
		{file("score/a_test.go", `const dir = "/root/x"`), "a path of one machine"},
		{file("score/a.go", `const dir = "../../shared/cases"`), "a folder outside"},
		{file("score/a_test.go", `const dir = "../../shared/cases"`), ""},
		{file(".ci/run", `ls ../shared/cases`), ""},
		{file("README.md", `run ../shared/cases`), "a folder outside"},
		{file("score/a.go", `// as issue #12 says`), "an issue's number"},
		{file("score/a.go", `// (#12)`), "an issue's number"},
		{file("score/a.go", `// the issue is old`), ""},
		{file("score/a.go", `// TODO: later`), "work left over"},
		{file("score/a.go", `const pattern = "XXXXXX"`), ""},
		{file("score/a.go", `// see the design document, section 5`), "a document outside"},
		{file("internal/lint/a_test.go", `// TODO`), ""},
	})
}
