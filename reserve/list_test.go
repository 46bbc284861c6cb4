package reserve

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestListAgainstSlice(t *testing.T) {
	type item struct {
		node[item]
		key int64
	}
	rapid.Check(t, func(t *rapid.T) {
		var l list[item]
		var model []*item
		var newest *item
		t.Repeat(map[string]func(*rapid.T){
			"insert": func(t *rapid.T) {
				e := &item{key: rapid.Int64Range(0, 5).Draw(t, "key")}
				e.own = e
				l.insert(&e.node, e.key)
				i := len(model)
				for i > 0 && model[i-1].key > e.key {
					i--
				}
				model = slices.Insert(model, i, e)
				newest = e
			},
			"remove newest": func(t *rapid.T) {
				i := slices.Index(model, newest)
				if i < 0 {
					t.Skip("gone")
				}
				l.remove(&newest.node)
				model = slices.Delete(model, i, i+1)
			},
			"remove": func(t *rapid.T) {
				if len(model) == 0 {
					t.Skip("empty")
				}
				i := rapid.IntRange(0, len(model)-1).Draw(t, "i")
				l.remove(&model[i].node)
				model = slices.Delete(model, i, i+1)
			},
			"": func(t *rapid.T) {
				require.NoError(t, checkList(&l, len(model)))
				i := 0
				for n := l.head; n != nil; n = n.next {
					require.Same(t, model[i], n.own)
					i++
				}
				require.Len(t, model, i)
			},
		})
	})
}
