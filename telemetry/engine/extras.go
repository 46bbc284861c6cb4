package engine

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/isobar-go/isobar/telemetry"
)

// evidence reports whether a counter shows that the engine has worked since its start.
func (r *reading) evidence() bool {
	for _, p := range []part{partEvidence, partPrefixHits, partPrefixQueries} {
		if slices.ContainsFunc(r.series[p], func(s series) bool { return s.value > 0 }) {
			return true
		}
	}
	return false
}

// epoch is the start time of the process, as printed. Of several the latest counts.
func (r *reading) epoch() string {
	latest := 0.0
	for _, s := range r.series[partProcessStart] {
		if s.value > latest && !math.IsInf(s.value, 1) {
			latest = s.value
		}
	}
	if latest == 0 {
		return ""
	}
	return strconv.FormatFloat(latest, 'f', -1, 64)
}

// asleep reads the one-hot sleep state. An engine of which one rank sleeps is asleep; contradictions say nothing.
func (r *reading) asleep() telemetry.Tri {
	type vote struct{ awake, notAwake, asleep bool }
	votes := make(map[string]vote)
	for _, s := range r.series[partSleepState] {
		v := votes[s.rank]
		awake := s.labels[r.sleepState] == r.awake
		switch {
		case awake && s.value == 1:
			v.awake = true
		case awake && s.value == 0:
			v.notAwake = true
		case s.value == 1:
			v.asleep = true
		}
		votes[s.rank] = v
	}
	out := telemetry.TriUnknown
	for _, v := range votes {
		switch {
		case v.awake && (v.asleep || v.notAwake):
		case v.asleep || v.notAwake:
			return telemetry.TriYes
		case v.awake:
			out = telemetry.TriNo
		}
	}
	return out
}

// adapters reads which adapters are in memory. On one rank the best level counts; over ranks the worst, since nobody
// can choose the rank that serves a request.
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
	worst := make(map[string]telemetry.AdapterState)
	for k, state := range best {
		if old, ok := worst[k.name]; !ok || nearness(state) < nearness(old) {
			worst[k.name] = state
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
