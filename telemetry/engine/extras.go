package engine

import (
	"maps"
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

// readCounters lists the series that only a restart sets back. One that vanishes must not look like one that went back,
// so that none is added to another; nor must one of which a value is none that a counter can have.
func (r *reading) readCounters() {
	for _, p := range []part{partEvidence, partPrefixHits, partPrefixQueries} {
		for i := range r.series[p] {
			s := &r.series[p][i]
			r.count(s.name(), s.value)
		}
	}
}

// count notes a counter; of copies the greatest.
func (r *reading) count(name string, v float64) {
	if !(v >= 0) || math.IsInf(v, 1) {
		return
	}
	if r.counters == nil {
		r.counters = make(map[string]float64)
	}
	r.counters[name] = max(r.counters[name], v)
}

// name spells the family and all labels, in one way only.
func (s *series) name() string {
	var b strings.Builder
	b.WriteString(s.family)
	for _, label := range slices.Sorted(maps.Keys(s.labels)) {
		b.WriteByte(',')
		b.WriteString(label)
		b.WriteString(strconv.Quote(s.labels[label]))
	}
	return b.String()
}
