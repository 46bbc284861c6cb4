package world

import (
	"slices"

	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/telemetry"
)

// adapters are the places for adapters in an engine's memory. The least recently used idle one makes room.
type adapters struct {
	places []adapterPlace
	holds  map[uint64]int // which place a try uses
	starve []uint64       // tries that wait for any place
	used   uint64
}

type adapterPlace struct {
	adapter router.Adapter // zero = free
	loading bool
	users   int    // tries that hold it, those that wait for its loading included
	last    uint64 // use
	waiters []uint64
}

func newAdapters(places int) adapters {
	return adapters{places: make([]adapterPlace, places), holds: map[uint64]int{}}
}

// wantAdapter says whether the try can go into the engine at once. Otherwise it is brought there by loaded.
func (n *node) wantAdapter(f *flight, id uint64) bool {
	if f.req.Adapter.ID == "" || len(n.adapters.places) == 0 {
		return true
	}
	at := slices.IndexFunc(n.adapters.places, func(p adapterPlace) bool { return p.adapter == f.req.Adapter })
	if at < 0 {
		if at = n.adapters.room(); at < 0 {
			n.adapters.starve = append(n.adapters.starve, id)
			return false
		}
		n.adapters.places[at] = adapterPlace{adapter: f.req.Adapter, loading: true}
		n.world.records[f.number].ColdLoad = true
		n.world.push(n.world.now+max(int64(n.cfg.AdapterLoad), 0), evLoaded, uint64(n.number)<<16|uint64(at),
			uint64(n.number)<<32|uint64(n.life&0xffff)<<16|uint64(at))
	}
	p := &n.adapters.places[at]
	p.users++
	n.adapters.used++
	p.last = n.adapters.used
	n.adapters.holds[id] = at
	if p.loading {
		p.waiters = append(p.waiters, id)
		return false
	}
	return true
}

// room is a free place, else that of the least recently used adapter that nobody uses; -1 = none.
func (a *adapters) room() int {
	at := -1
	for i := range a.places {
		p := &a.places[i]
		if p.users == 0 && !p.loading && (at < 0 || p.last < a.places[at].last) {
			at = i
		}
	}
	return at
}

// loaded lets those in who have waited for an adapter. ref is the place and the life in which its loading began.
func (n *node) loaded(ref uint32) {
	at := int(ref & 0xffff)
	if !n.up || n.life&0xffff != int(ref>>16) {
		return
	}
	p := &n.adapters.places[at]
	p.loading = false
	waiters := p.waiters
	p.waiters = nil
	for _, id := range waiters {
		if f := n.world.flightOf(id); f != nil && f.stage == loading {
			n.world.submit(f, id)
		} else {
			n.freeAdapter(id)
		}
	}
	n.serve()
}

// freeAdapter ends the use of an adapter by a try.
func (n *node) freeAdapter(id uint64) {
	if at, ok := n.adapters.holds[id]; ok {
		delete(n.adapters.holds, id)
		n.adapters.places[at].users--
		n.serve()
	}
}

// serve gives places to those who wait for any, in their order, as long as there are.
func (n *node) serve() {
	for len(n.adapters.starve) > 0 {
		id := n.adapters.starve[0]
		f := n.world.flightOf(id)
		if f != nil && f.stage == loading {
			resident := slices.ContainsFunc(n.adapters.places, func(p adapterPlace) bool { return p.adapter == f.req.Adapter })
			if !resident && n.adapters.room() < 0 {
				return
			}
		}
		n.adapters.starve = n.adapters.starve[1:]
		if f != nil && f.stage == loading && n.wantAdapter(f, id) {
			n.world.submit(f, id)
		}
	}
}

// waits is the number of tries that are at the engine and not inside it.
func (n *node) waits() int {
	waiting := 0
	count := func(ids []uint64) {
		for _, id := range ids {
			if f := n.world.flightOf(id); f != nil && f.stage == loading {
				waiting++
			}
		}
	}
	count(n.adapters.starve)
	for i := range n.adapters.places {
		count(n.adapters.places[i].waiters)
	}
	return waiting
}

// list is what the engine reports of its adapters.
func (a *adapters) list(dst []telemetry.Adapter) []telemetry.Adapter {
	for _, p := range a.places {
		if p.adapter.ID == "" {
			continue
		}
		state := telemetry.AdapterReady
		if p.loading {
			state = telemetry.AdapterLoading
		}
		dst = append(dst, telemetry.Adapter{ID: p.adapter.ID, Digest: p.adapter.Digest, State: state})
	}
	return dst
}
