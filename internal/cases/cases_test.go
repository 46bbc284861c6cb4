package cases

import (
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"
)

// folders hold cases; all but the first need not be there.
var folders = []string{"testdata", "../../../shared/cases"}

func caseFiles(tb testing.TB) []string {
	tb.Helper()
	var files []string
	for i, folder := range folders {
		if _, err := os.Stat(folder); i > 0 && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		found, err := filepath.Glob(filepath.Join(folder, "*.case"))
		require.NoError(tb, err)
		require.NotEmpty(tb, found, folder)
		files = append(files, found...)
	}
	return files
}

// TestCases runs every case. With -rewrite, a flag of the datadriven package, the results are written into testdata.
func TestCases(t *testing.T) {
	rewrite := flag.Lookup("rewrite").Value.String() == "true"
	for _, path := range caseFiles(t) {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".case"), func(t *testing.T) {
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			f, err := Parse(data)
			require.NoError(t, err)
			r := f.Run()
			if rewrite && filepath.Dir(path) == folders[0] {
				require.NoError(t, os.WriteFile(path, f.Rewrite(r), 0o644))
				return
			}
			for _, d := range r.Differences {
				t.Errorf("%s: %v", path, d)
			}
		})
	}
}

// TestFormat compares this package's reading of the format with the one it comes from.
func TestFormat(t *testing.T) {
	if flag.Lookup("rewrite").Value.String() == "true" {
		t.Skip("nothing is to be rewritten by this test")
	}
	for _, path := range caseFiles(t) {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		f, err := Parse(data)
		require.NoError(t, err)
		at := 0
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			require.Less(t, at, len(f.blocks))
			b := &f.blocks[at]
			at++
			require.True(t, strings.HasSuffix(d.Pos, ":"+itoa(b.line)), "%s is not line %d", d.Pos, b.line)
			c, err := parseCommand(b.command)
			require.NoError(t, err)
			require.Equal(t, d.Cmd, c.name)
			require.Len(t, c.args, len(d.CmdArgs))
			for i, a := range d.CmdArgs {
				require.Equal(t, a.Key, c.args[i].key)
				require.Equal(t, strings.Join(a.Vals, ","), c.args[i].value)
			}
			var input []string
			for line := range strings.SplitSeq(d.Input, "\n") {
				if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
					input = append(input, line)
				}
			}
			require.True(t, slices.EqualFunc(input, b.input, func(a string, b inputLine) bool { return a == b.text }))
			require.Equal(t, d.Expected, joinLines(b.expected))
			return d.Expected
		})
		require.Equal(t, len(f.blocks), at, path)
	}
}

// TestCommandsAreCovered keeps testdata a tour of the whole language.
func TestCommandsAreCovered(t *testing.T) {
	seen := map[string]bool{}
	files, err := filepath.Glob("testdata/*.case")
	require.NoError(t, err)
	for _, path := range files {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(string(data), "# "), "%s must begin by saying what a user sees", path)
		f, err := Parse(data)
		require.NoError(t, err)
		for i := range f.blocks {
			lines := []string{f.blocks[i].command}
			for _, in := range f.blocks[i].input {
				lines = append(lines, in.text)
			}
			for _, line := range lines {
				name, _, _ := cutAny(line, " ")
				seen[name] = true
			}
		}
	}
	for name := range handlers {
		require.True(t, seen[name], "no case in testdata uses the command %q", name)
	}
}
