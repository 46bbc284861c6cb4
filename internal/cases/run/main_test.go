package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	good   = "endpoint a\n----\n\nroute prompt=1 out=1\n----\na\n"
	bad    = "# Wrong.\nendpoint a\n----\n\nroute prompt=1 out=1\n----\nb\n"
	broken = "endpoint a\n"
)

// write makes a folder with files of those contents.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return dir
}

// call runs the command with the folder cut out of what it prints.
func call(dir string, args ...string) (status int, stdout, stderr string) {
	var out, err strings.Builder
	status = run(args, &out, &err)
	cut := func(s string) string { return strings.ReplaceAll(s, dir+string(filepath.Separator), "") }
	return status, cut(out.String()), cut(err.String())
}

func TestStatus(t *testing.T) {
	dir := write(t, map[string]string{
		"good/one.case": good, "good/deep/two.case": good, "good/notes.txt": broken, "good/.hidden.case": broken,
		"bad.case": bad, "broken.case": broken, "plain": good, "none/readme": "",
	})
	at := func(names ...string) []string {
		var paths []string
		for _, name := range names {
			paths = append(paths, filepath.Join(dir, name))
		}
		return paths
	}
	const difference = "bad.case: line 5: route prompt=1 out=1\n  - b\n  + a\n"
	for _, tc := range []struct {
		args           []string
		status         int
		stdout, stderr string
	}{
		{at("good"), 0, "2 passed, 0 failed\n", ""},
		{at("plain"), 0, "1 passed, 0 failed\n", ""},
		{at("bad.case", "good"), 1, difference + "2 passed, 1 failed\n", ""},
		{at("broken.case", "bad.case", "plain"), 2, difference + "1 passed, 2 failed\n", "broken.case:1: no line \"----\" after this command\n"},
		{at("none"), 2, "0 passed, 1 failed\n", "no file *.case"},
		{at("missing", "plain"), 2, "1 passed, 1 failed\n", "no such file"},
		{nil, 2, "", "usage: "},
		{[]string{"-nonsense"}, 2, "", "usage: "},
		{[]string{"-help"}, 0, "", "usage: "},
	} {
		status, stdout, stderr := call(dir, tc.args...)
		require.Equal(t, tc.status, status, "%v", tc.args)
		require.Equal(t, tc.stdout, stdout, "%v", tc.args)
		require.Contains(t, stderr, tc.stderr, "%v", tc.args)
		require.Equal(t, tc.stderr == "", stderr == "", "%v", tc.args)
	}
}

func TestRewrite(t *testing.T) {
	dir := write(t, map[string]string{"bad.case": bad})
	path := filepath.Join(dir, "bad.case")
	status, stdout, _ := call(dir, "-rewrite", path)
	require.Equal(t, 0, status)
	require.Equal(t, "1 passed, 0 failed\n", stdout)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, strings.Replace(bad, "\nb\n", "\na\n", 1), string(data))
	status, stdout, _ = call(dir, path)
	require.Equal(t, 0, status)
	require.Equal(t, "1 passed, 0 failed\n", stdout)
}

func TestTooLongAFile(t *testing.T) {
	dir := write(t, map[string]string{"long.case": strings.Repeat("#\n", 1<<20)})
	status, _, stderr := call(dir, filepath.Join(dir, "long.case"))
	require.Equal(t, 2, status)
	require.Contains(t, stderr, "long.case: cases: the file has")
}
