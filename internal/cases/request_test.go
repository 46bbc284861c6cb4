package cases

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSegmentIsAHeadOfItself(t *testing.T) {
	long := appendSegment(nil, "x", 48)
	require.Equal(t, long[:16], appendSegment(nil, "x", 16))
	require.NotEqual(t, long[0], appendSegment(nil, "y", 1)[0])
	for _, token := range long {
		require.Less(t, token, uint32(padding))
	}
}

func TestDemandsShareTheirHeadAlone(t *testing.T) {
	m := NewMachine()
	c, err := parseCommand("route prompt=100 prefix=x:20+y:30")
	require.NoError(t, err)
	d := m.readDemand(c)
	require.NoError(t, c.end())
	a, err := m.next(&d)
	require.NoError(t, err)
	b, err := m.next(&d)
	require.NoError(t, err)
	require.Equal(t, 6, a.Prefix.Blocks())
	require.Equal(t, a.Prefix.Head(3).Fingerprint(), b.Prefix.Head(3).Fingerprint())
	require.NotEqual(t, a.Prefix.Head(4).Fingerprint(), b.Prefix.Head(4).Fingerprint())
}

func TestWorkIsBounded(t *testing.T) {
	m := NewMachine()
	for _, line := range []string{
		"route n=100001 prompt=1", "route n=0 prompt=1", "cycle n=100000 prompt=100000 prefix=x:1", "parallel n=100000 prompt=1000 prefix=x:1",
		"route prompt=5000000 prefix=x:1", "route prompt=1 prefix=x:5000000", "match prefix=x:4000000+y:4000000", "spread prompt=1 tolerance=1",
	} {
		require.Contains(t, m.Run(line)[0], "error: ", line)
	}
	require.Equal(t, []string{"reject no-endpoints"}, m.Run("route prompt=9000000000000000000 out=9000000000000000000"))
}
