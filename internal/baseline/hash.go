package baseline

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/cespare/xxhash/v2"

	"github.com/isobar-go/isobar/internal/world"
)

const (
	virtualNodes = 256  // of an engine on the ring
	boundFactor  = 1.25 // times the mean load, this request included
	keyBlocks    = 2    // of a prompt stand for its first 100 characters
)

// ring is a consistent hash ring over all engines, there or not.
type ring struct {
	points []point
	in     []bool // by engine: candidates of the choice
}

type point struct {
	hash   uint64
	engine int
}

func newRing(f *fleet) *ring {
	g := &ring{in: make([]bool, len(f.engines))}
	for i := range f.engines {
		for v := range virtualNodes {
			g.points = append(g.points, point{xxhash.Sum64String(f.engines[i].id + "#" + strconv.Itoa(v)), i})
		}
	}
	slices.SortFunc(g.points, func(a, b point) int {
		return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(a.engine, b.engine))
	})
	return g
}

// walk returns the first candidate clockwise from the key that will do; -1 = none.
func (g *ring) walk(key uint64, among []int, will func(i int) bool) int {
	clear(g.in)
	for _, i := range among {
		g.in[i] = true
	}
	at, _ := slices.BinarySearchFunc(g.points, key, func(p point, k uint64) int { return cmp.Compare(p.hash, k) })
	for k := range g.points {
		p := g.points[(at+k)%len(g.points)]
		if !g.in[p.engine] {
			continue
		}
		if will(p.engine) {
			return p.engine
		}
		g.in[p.engine] = false
	}
	return -1
}

// sessionHash, "session-hash": consistent hashing of the session, on the same ring as chwbl. A request without one goes anywhere.
func sessionHash(f *fleet) pick {
	g := newRing(f)
	return func(r *world.Request, among []int) int {
		if r.Session == "" {
			return f.any(among)
		}
		return g.walk(mix(xxhash.Sum64String(r.Session)), among, func(int) bool { return true })
	}
}

// boundedHash, "chwbl": consistent hashing with bounded loads of the first 100 characters of the prompt, for which its first two
// blocks stand, and of the adapter, on a ring with 256 virtual nodes: clockwise to the first engine with own requests in
// flight <= 1.25 x (total+1)/n. A prompt without a whole block is like no other.
func boundedHash(f *fleet) pick {
	g := newRing(f)
	return func(r *world.Request, among []int) int {
		key := mix(uint64(r.Number) + 1)
		if n := min(len(r.Blocks), keyBlocks); n > 0 {
			key = r.Blocks[n-1]
		}
		if r.Adapter.ID != "" {
			key ^= mix(xxhash.Sum64String(r.Adapter.ID))
		}
		total := 0
		for _, i := range among {
			total += f.engines[i].requests
		}
		most := boundFactor * float64(total+1) / float64(len(among))
		return g.walk(mix(key), among, func(i int) bool { return float64(f.engines[i].requests) <= most })
	}
}

// mix spreads all bits of x over all bits of the result: a bijection, Stafford's mix13.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
