package cases

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseNamesTheLine(t *testing.T) {
	for _, tc := range []struct {
		name, text, want string
	}{
		{"no separator", "# c\n\nroute prompt=1\na\n", `cases: line 3: no line "----" after this command`},
		{"separator alone", "----\na\n", "cases: line 1: a separator without a command before it"},
		{"bad command", "# c\nroute =1\n----\n", "cases: line 2: a value without a key at column 7"},
		{"bad input", "setup\nroute a=(\n----\n", `cases: line 2: "a" at column 7 has no closing parenthesis`},
		{"open double", "explain\n----\n----\nx\n----\n", "cases: line 3: the double separator is not closed"},
		{"text after double", "explain\n----\n----\nx\n----\n----\ny\n", "cases: line 7: a blank line must follow a double separator"},
		{"not text", "route\xff\n----\n", "cases: line 1: is not UTF-8"},
		{"continued into nothing", `route \`, `cases: line 1: no line "----" after this command`},
	} {
		_, err := Parse([]byte(tc.text))
		require.EqualError(t, err, tc.want, tc.name)
	}
	_, err := Parse(bytes.Repeat([]byte("\n"), MaxFile+1))
	require.ErrorContains(t, err, "more than 1048576")
	_, err = Parse(bytes.Repeat([]byte("\n"), MaxFile))
	require.NoError(t, err)
}

func TestParseReadsBothForms(t *testing.T) {
	f, err := Parse([]byte("# c\r\nroute a \\\r\n  b\r\n----\r\n\r\n\nsetup\nx\n\n# c\ny\n----\n----\none\n\n----\ntwo\n----\n----\n\nlast\n----\nthree"))
	require.NoError(t, err)
	require.Len(t, f.blocks, 3)
	require.Equal(t, "route a b", f.blocks[0].command)
	require.Equal(t, 2, f.blocks[0].line)
	require.Empty(t, f.blocks[0].expected)
	require.Equal(t, []inputLine{{8, "x"}, {11, "y"}}, f.blocks[1].input)
	require.Equal(t, []string{"one", "", "----", "two"}, f.blocks[1].expected)
	require.Equal(t, []string{"three"}, f.blocks[2].expected)
}

func TestMatches(t *testing.T) {
	for _, tc := range []struct {
		expected, printed string
		want              bool
	}{
		{"a", "a", true}, {"a", "b", false}, {"a", "a\nb", false}, {"a  ", "a", true}, {" a", "a", false},
		{"error: ...", "error: unknown", true}, {"error: ...", "error:", true}, {"a ...", "b", false}, {"...", "a", false},
		{"a\nb ...\nc", "a\nb c d\nc", true}, {"a...", "abc", false},
	} {
		got := matches(strings.Split(tc.expected, "\n"), strings.Split(tc.printed, "\n"))
		require.Equal(t, tc.want, got, "%q %q", tc.expected, tc.printed)
	}
	require.True(t, matches(nil, nil))
	require.False(t, matches(nil, []string{"a"}))
}

func TestRewriteKeepsTheRest(t *testing.T) {
	const before = `# A comment.
setup
endpoint a
endpoint b
observe b running=1
----
something

# Another.
route prompt=100 \
  out=10 exclude=b hard
----

load a
----
requests=1 ...

explain prompt=100 exclude=a,b hard
----
----
old

text
----
----

# The end.
`
	const after = `# A comment.
setup
endpoint a
endpoint b
observe b running=1
----

# Another.
route prompt=100 \
  out=10 exclude=b hard
----
a

load a
----
requests=1 ...

explain prompt=100 exclude=a,b hard
----
a (excluded: excluded)
b (excluded: excluded)

# The end.
`
	f, err := Parse([]byte(before))
	require.NoError(t, err)
	r := f.Run()
	require.Len(t, r.Differences, 3)
	require.Equal(t, Difference{10, "route prompt=100 out=10 exclude=b hard", nil, []string{"a"}}, r.Differences[1])
	require.Equal(t, "line 2: setup\n  - something\n  + (nothing)\n", r.Differences[0].String())
	require.Equal(t, after, string(f.Rewrite(r)))

	f, err = Parse([]byte(after))
	require.NoError(t, err)
	r = f.Run()
	require.Empty(t, r.Differences)
	require.Equal(t, after, string(f.Rewrite(r)))
}

func TestRewriteKeepsLineEnds(t *testing.T) {
	for before, after := range map[string]string{
		"endpoint a\n----\n\nroute prompt=1\n----\na":               "endpoint a\n----\n\nroute prompt=1\n----\na",
		"endpoint a\r\n----\r\nb\r\n\r\nroute prompt=1\r\n----\r\n": "endpoint a\r\n----\r\n\r\nroute prompt=1\r\n----\r\na\r\n",
		"endpoint a\n----\n\nroute prompt=1\n----":                  "endpoint a\n----\n\nroute prompt=1\n----\na\n",
		"endpoint a\r\r\n----\nb\n":                                 "endpoint a\r\r\n----\n",
	} {
		f, err := Parse([]byte(before))
		require.NoError(t, err)
		require.Equal(t, after, string(f.Rewrite(f.Run())))
	}
}

func TestRewriteUsesTheDoubleForm(t *testing.T) {
	f, err := Parse([]byte("x\n----\ny"))
	require.NoError(t, err)
	out := f.Rewrite(Result{printed: [][]string{{"a", "", "b"}}})
	require.Equal(t, "x\n----\n----\na\n\nb\n----\n----\n", string(out))
	f, err = Parse(out)
	require.NoError(t, err)
	require.Equal(t, []string{"a", "", "b"}, f.blocks[0].expected)
}
