package cases

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParseCommand(t *testing.T) {
	c, err := parseCommand("  route\tid=r1  a,b hard prefix=x:1+y:2 exclude=(a, b) empty= ")
	require.NoError(t, err)
	require.Equal(t, "route", c.name)
	require.Equal(t, []arg{
		{key: "id", value: "r1"}, {key: "a,b", bare: true}, {key: "hard", bare: true}, {key: "prefix", value: "x:1+y:2"},
		{key: "exclude", value: "a,b"}, {key: "empty"},
	}, c.args)

	for _, line := range []string{"route =3", "route a=(b, c", "a b =c"} {
		_, err := parseCommand(line)
		require.Error(t, err, line)
	}
}

func TestArgumentsAreUsedOnce(t *testing.T) {
	for _, tc := range []struct {
		line, want string
		read       func(*command)
	}{
		{"x n=3", "", func(c *command) { c.count("n", 0, 5, 0) }},
		{"x n=6", `key "n": 6 is not in [0, 5]`, func(c *command) { c.count("n", 0, 5, 0) }},
		{"x n=3.5", `key "n": "3.5" is not a whole number`, func(c *command) { c.count("n", 0, 5, 0) }},
		{"x n=3 n=3", `x: key "n" is given twice`, func(c *command) { c.count("n", 0, 5, 0) }},
		{"x n", `key "n" needs a value`, func(c *command) { c.count("n", 0, 5, 0) }},
		{"x y", `unknown key "y"`, func(c *command) { c.flag("z") }},
		{"x", "x: no thing given", func(c *command) { c.word("thing") }},
		{"x d=1h", "", func(c *command) { c.duration("d") }},
		{"x d=1", `key "d": "1" is not a duration`, func(c *command) { c.duration("d") }},
		{"x d=999999h", `key "d": duration "999999h" is above 50 years`, func(c *command) { c.duration("d") }},
		{"x f=1e999", "", func(c *command) { c.number("f") }},
		{"x f=nan g=-inf", "", func(c *command) { c.number("f"); c.number("g") }},
		{"x f=0x", `key "f": "0x" is not a number`, func(c *command) { c.number("f") }},
	} {
		c, err := parseCommand(tc.line)
		require.NoError(t, err)
		tc.read(c)
		if tc.want == "" {
			require.NoError(t, c.end(), tc.line)
			continue
		}
		require.EqualError(t, c.end(), tc.want, tc.line)
	}
}

func TestAdvanceIsBounded(t *testing.T) {
	m := NewMachine()
	require.Empty(t, m.Run("advance 400000h"))
	require.Equal(t, []string{"error: advance: the clock would be above 50 years"}, m.Run("advance 400000h"))
	require.Equal(t, 400000*time.Hour, m.clock.Sub(m.start))
}

func TestCheckName(t *testing.T) {
	for _, name := range []string{"a", "10.0.0.1:8000", "pod/ns-1_x", "é"} {
		require.NoError(t, checkName("endpoint", name), name)
	}
	for _, name := range []string{"", "-", "----", "#a", "a,b", "a\u00a0b", "a\x00", string(make([]byte, 200))} {
		require.Error(t, checkName("endpoint", name), name)
	}
}
