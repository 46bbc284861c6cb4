package prefix_test

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/prefix"
)

func scope(t testing.TB, p prefix.Parts) prefix.Scope {
	t.Helper()
	s, err := prefix.NewScope(p)
	require.NoError(t, err)
	return s
}

func TestScopeFraming(t *testing.T) {
	t.Parallel()
	const zeros = "\x00\x00\x00\x00\x00\x00\x00\x00"
	parts := []prefix.Parts{
		{Model: "m"},
		{Model: "x"},
		{Model: "m", Tenant: "x"},
		{Model: "x", Tenant: "m"},
		{Model: "ab", Revision: "c"},
		{Model: "a", Revision: "bc"},
		{Model: "abc"},
		{Model: "m", Tokenizer: "x"},
		{Model: "m", Salt: "x"},
		{Model: "m", CacheFormat: "x"},
		{Model: "m", Decoding: "x"},
		{Model: "m", AdapterID: "a", AdapterDigest: "bc"},
		{Model: "m", AdapterID: "ab", AdapterDigest: "c"},
		{Model: "m", Tenant: "\x00"},
		{Model: "m", Tenant: "\x00\x00"},
		{Model: "m\x00"},
		{Model: "\xff\xfe"},
		{Model: "M"},
		{Model: "a\x01" + zeros + "b"}, // as if the frame of the next part were in this one
		{Model: "a", Revision: "b\x01" + zeros},
		{Model: "a", Revision: "b"},
	}
	seen := map[prefix.Scope]prefix.Parts{}
	for _, p := range parts {
		s := scope(t, p)
		require.True(t, s.Known())
		require.Equal(t, s, scope(t, p), "the same parts give the same scope")
		other, dup := seen[s]
		require.False(t, dup, "%+v and %+v", p, other)
		seen[s] = p
	}
}

func TestScopeUsesEveryPart(t *testing.T) {
	t.Parallel()
	base := prefix.Parts{Model: "m", AdapterID: "a", AdapterDigest: "d"}
	for i := range reflect.TypeFor[prefix.Parts]().NumField() {
		p := base
		reflect.ValueOf(&p).Elem().Field(i).SetString("other")
		require.NotEqual(t, scope(t, base), scope(t, p), reflect.TypeFor[prefix.Parts]().Field(i).Name)
	}
}

func TestScopeErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		parts prefix.Parts
		want  string
	}{
		{prefix.Parts{Tenant: "t"}, "prefix: Model is empty, a scope needs one"},
		{prefix.Parts{Model: "m", AdapterID: "a"}, `prefix: AdapterID "a" and AdapterDigest "" go together, one is empty`},
		{prefix.Parts{Model: "m", AdapterDigest: "d"}, `prefix: AdapterID "" and AdapterDigest "d" go together, one is empty`},
	} {
		s, err := prefix.NewScope(c.parts)
		require.EqualError(t, err, c.want)
		require.False(t, s.Known())
		require.Equal(t, "unknown", s.String())
	}
	require.Regexp(t, "^[0-9a-f]{32}$", scope(t, prefix.Parts{Model: "m"}).String())
}
