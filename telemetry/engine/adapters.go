package engine

import (
	"math"
	"slices"
	"strings"

	"github.com/isobar-go/isobar/telemetry"
)

// adapters reads which adapters are in memory. On one rank the best level counts; over ranks the worst, since nobody
// can choose the rank that serves a request. A rank that does not list an adapter has not loaded it.
func (r *reading) adapters(declared bool) telemetry.AdapterReport {
	all := r.series[partAdapterLoaded]
	if len(all) == 0 && !declared {
		return telemetry.AdapterReport{}
	}
	type key struct{ name, rank string }
	best := make(map[key]telemetry.AdapterState)
	size := make(map[string]int)
	for _, s := range all {
		k := key{s.labels[r.adapter], s.rank}
		if k.name == "" || math.IsNaN(s.value) {
			continue
		}
		state := telemetry.AdapterUnloaded
		if s.value == 1 {
			switch s.labels[r.level] {
			case r.ready:
				state = telemetry.AdapterReady
			case r.cached:
				state = telemetry.AdapterCached
			default:
				state = telemetry.AdapterUnknown
			}
		}
		if old, ok := best[k]; !ok || nearness(state) > nearness(old) {
			best[k] = state
		}
		if n, ok := positive(s.labels[r.adapterRank]); ok && n <= math.MaxInt32 {
			size[k.name] = max(size[k.name], int(n))
		}
	}
	ranks := make(map[string]bool) // with a name
	for rank := range r.ranks {
		ranks[rank] = true
	}
	worst := make(map[string]telemetry.AdapterState)
	lists := make(map[string]int) // number of ranks that list the adapter
	for k, state := range best {
		if old, ok := worst[k.name]; !ok || nearness(state) < nearness(old) {
			worst[k.name] = state
		}
		ranks[k.rank] = true
		lists[k.name]++
	}
	delete(ranks, noRank)
	for name, n := range lists {
		if _, whole := best[key{name, noRank}]; !whole && n < len(ranks) {
			worst[name] = telemetry.AdapterUnloaded
		}
	}
	out := telemetry.AdapterReport{Known: true}
	for name, state := range worst {
		out.Adapters = append(out.Adapters, telemetry.Adapter{ID: name, State: state, Rank: size[name]})
	}
	slices.SortFunc(out.Adapters, func(a, b telemetry.Adapter) int { return strings.Compare(a.ID, b.ID) })
	return out
}

// nearness orders the states by how soon a request can start.
func nearness(s telemetry.AdapterState) int {
	switch s {
	case telemetry.AdapterReady:
		return 3
	case telemetry.AdapterCached:
		return 2
	case telemetry.AdapterUnknown:
		return 1
	}
	return 0
}

// activity reads the adapters of current requests. The value of a series is the time at which it held: old ones stay in
// the document, so that only the newest of each rank counts.
func (r *reading) activity() Activity {
	newest := make(map[string]series)
	for _, s := range r.series[partAdapterRequest] {
		if math.IsNaN(s.value) {
			continue
		}
		old, ok := newest[s.rank]
		switch {
		case !ok, s.value > old.value:
		case s.value < old.value:
			continue
		case r.lists(s) <= r.lists(old): // as new: any fixed choice, whatever the order of the lines
			continue
		}
		newest[s.rank] = s
	}
	out := Activity{Known: len(newest) > 0}
	for _, s := range newest {
		out.Running = appendNames(out.Running, s.labels[r.runningAdapters])
		out.Waiting = appendNames(out.Waiting, s.labels[r.waitingAdapters])
	}
	slices.Sort(out.Running)
	slices.Sort(out.Waiting)
	out.Running, out.Waiting = slices.Compact(out.Running), slices.Compact(out.Waiting)
	return out
}

func (r *reading) lists(s series) string {
	return s.labels[r.runningAdapters] + "\x00" + s.labels[r.waitingAdapters]
}

func appendNames(to []string, list string) []string {
	for name := range strings.SplitSeq(list, ",") {
		if name = strings.TrimSpace(name); name != "" {
			to = append(to, name)
		}
	}
	return to
}

// adapterSlots reads how many adapters fit into device memory at once. Where it is said differently the least counts:
// nobody can choose the rank that serves a request.
func (r *reading) adapterSlots() int {
	least := 0
	take := func(n float64) {
		if n >= 1 && n <= math.MaxInt32 && (least == 0 || int(n) < least) {
			least = int(n)
		}
	}
	for _, s := range r.series[partAdapterSlots] {
		take(s.value)
	}
	if least > 0 {
		return least
	}
	for _, s := range r.series[partAdapterRequest] {
		if n, ok := positive(s.labels[r.maxAdapters]); ok {
			take(n)
		}
	}
	return least
}
