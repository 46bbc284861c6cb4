package engine

import (
	"math"
	"slices"
	"strconv"

	"github.com/isobar-go/isobar/telemetry"
)

// noRank is the rank of a series without a rank label.
const noRank = ""

// maxDisagreement is how far the printed share may be from used by size before the used tokens are not believed. Engines
// round the share to two digits.
const maxDisagreement = 0.02

// place puts the figures of a single rank into the snapshot itself and those of several into its ranks.
func (r *reading) place(s *telemetry.Snapshot) {
	var labels []string
	for label := range r.ranks {
		if label != noRank {
			labels = append(labels, label)
		}
	}
	own := r.ranks[noRank]
	if own == nil {
		own = new(rankFigures)
	}
	if len(labels) <= 1 {
		// Series without the label are of the only rank there is.
		if len(labels) == 1 {
			own = r.ranks[labels[0]].or(own)
		}
		fig := own.figures(0)
		s.Running, s.Waiting, s.WaitingTokens = fig.Running, fig.Waiting, fig.WaitingTokens
		s.KVShare, s.KVUsed, s.KVCapacity = fig.KVShare, fig.KVUsed, fig.KVCapacity
		s.GenerationRate, s.PrefixHitRate, s.MaxRunning = fig.GenerationRate, fig.PrefixHitRate, fig.MaxRunning
		return
	}
	ids := rankIDs(labels)
	for i, label := range labels {
		s.Ranks = append(s.Ranks, r.ranks[label].figures(ids[i]))
	}
	slices.SortFunc(s.Ranks, func(a, b telemetry.Rank) int { return a.ID - b.ID })
	// A figure without the label beside others with it is one of the whole engine, but for its limits: of those one
	// cannot tell whether they are of a rank or of all. What the ranks say themselves must not be counted once more.
	for p := range own {
		if slices.ContainsFunc(labels, func(label string) bool { return r.ranks[label][p].Known() }) {
			own[p] = telemetry.Reading{}
		}
	}
	fig := own.figures(0)
	s.Running, s.Waiting, s.WaitingTokens = fig.Running, fig.Waiting, fig.WaitingTokens
	s.KVShare, s.KVUsed = fig.KVShare, fig.KVUsed
	s.GenerationRate, s.PrefixHitRate = fig.GenerationRate, fig.PrefixHitRate
}

// or returns f with the figures it lacks taken from g.
func (f *rankFigures) or(g *rankFigures) *rankFigures {
	out := *f
	for p := range out {
		if !out[p].Known() {
			out[p] = g[p]
		}
	}
	return &out
}

// figures computes what a rank says.
func (f *rankFigures) figures(id int) telemetry.Rank {
	out := telemetry.Rank{
		ID: id, Running: f[partRunning], Waiting: f[partWaiting], WaitingTokens: f[partWaitingTokens],
		KVShare: f[partKVShare], KVUsed: f[partKVUsed], KVCapacity: f[partKVCapacity],
		GenerationRate: f[partGenerationRate], PrefixHitRate: f[partHitRate], MaxRunning: f[partMaxRunning],
	}
	if n, ok := f[partWaiting].Value(); ok {
		if more, ok := f[partWaitingMore].Value(); ok {
			out.Waiting = telemetry.V(n + more)
		}
	}
	if !out.KVUsed.Known() {
		out.KVUsed = product(f[partKVUsedBlocks], f[partBlockSize])
	}
	if !out.KVCapacity.Known() {
		out.KVCapacity = product(f[partKVBlocks], f[partBlockSize])
	}
	if contradicted(&out) {
		out.KVUsed = telemetry.Reading{}
	}
	if !out.PrefixHitRate.Known() {
		hits, okHits := f[partPrefixHits].Value()
		queries, okQueries := f[partPrefixQueries].Value()
		if okHits && okQueries && queries != 0 {
			out.PrefixHitRate = telemetry.V(hits / queries)
		}
	}
	return out
}

// contradicted reports whether the used tokens say something else than the printed share. The share is then the better
// figure: it is what the engine acts on, and may be that of another pool which is fuller.
func contradicted(fig *telemetry.Rank) bool {
	share, okShare := fig.KVShare.Value()
	used, okUsed := fig.KVUsed.Value()
	capacity, okCapacity := fig.KVCapacity.Value()
	return okShare && okUsed && okCapacity && capacity > 0 && math.Abs(used/capacity-share) > maxDisagreement
}

func product(a, b telemetry.Reading) telemetry.Reading {
	x, okX := a.Value()
	y, okY := b.Value()
	if !okX || !okY {
		return telemetry.Reading{}
	}
	return telemetry.V(x * y)
}

// rankIDs gives every label a number of its own: the one it spells, or one above all of those.
func rankIDs(labels []string) []int {
	slices.Sort(labels)
	ids := make([]int, len(labels))
	used := make(map[int]bool)
	next := 0
	for i, label := range labels {
		n, err := strconv.ParseUint(label, 10, 30)
		if err != nil || used[int(n)] {
			ids[i] = -1
			continue
		}
		ids[i] = int(n)
		used[int(n)] = true
		next = max(next, int(n)+1)
	}
	for i := range ids {
		if ids[i] < 0 {
			ids[i] = next
			next++
		}
	}
	return ids
}
