package engine

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/isobar-go/isobar/telemetry"
)

// noRank is the rank of a series without a rank label.
const noRank = ""

// series is one sample of a family that the dialect knows.
type series struct {
	value  float64
	labels map[string]string
	rank   string
	model  string
}

// rankFigures are the figures of one rank. A gauge is known if a series said so.
type rankFigures struct {
	gauges        [numGauges]telemetry.Reading
	capacity      telemetry.Reading
	hits, queries telemetry.Reading
}

// reading is one document while it is being read.
type reading struct {
	*dialect
	model  string
	series [numParts][]series
	found  bool                    // a family of the engine has a series that passed the filter
	others map[string]bool         // models that did not pass
	ranks  map[string]*rankFigures // by rank label
}

func (d *dialect) report(families map[string]*dto.MetricFamily, declared map[string]bool, model string,
	at time.Time) (Report, error) {
	r := reading{dialect: d, model: model, others: make(map[string]bool), ranks: make(map[string]*rankFigures)}
	for _, sig := range d.signals {
		r.collect(sig, families)
	}
	adaptersDeclared := false
	for _, sig := range d.signals {
		if sig.part == partAdapterLoaded {
			adaptersDeclared = slices.ContainsFunc(sig.families, func(f string) bool { return declared[f] })
		}
	}
	if !r.found && !adaptersDeclared {
		if len(r.others) > 0 {
			return Report{}, fmt.Errorf("engine: %w %s for Model %q", ErrNoSignals, d.kind, model)
		}
		return Report{}, fmt.Errorf("engine: %w %s", ErrNoSignals, d.kind)
	}
	r.readGauges()
	r.readCapacity()
	rep := Report{Activity: r.activity()}
	s := &rep.Snapshot
	s.ObservedAt = at
	s.Source = string(d.kind)
	s.Epoch = r.epoch()
	s.Asleep = r.asleep()
	s.Adapters = r.adapters(adaptersDeclared)
	if !r.evidence() {
		s.Evidence = telemetry.EvidenceNone
	}
	r.place(s)
	return rep, nil
}

// collect takes the series of the first family of the signal that has any.
func (r *reading) collect(sig signal, families map[string]*dto.MetricFamily) {
	for _, name := range sig.families {
		n := len(r.series[sig.part])
		for _, m := range families[name].GetMetric() {
			s := series{value: sampleValue(m), labels: make(map[string]string, len(m.GetLabel()))}
			for _, l := range m.GetLabel() {
				s.labels[l.GetName()] = l.GetValue()
			}
			s.rank, s.model = s.labels[r.rankLabel], s.labels[r.modelLabel]
			if r.model != "" && s.model != "" && s.model != r.model {
				r.others[s.model] = true
				continue
			}
			r.series[sig.part] = append(r.series[sig.part], s)
		}
		if len(r.series[sig.part]) > n {
			r.found = r.found || name != processStart
			return
		}
	}
}

// byRank folds the series of a part into one number for each rank: copies of one model on one rank count once, by the
// greatest; different models are joined by fold.
func (r *reading) byRank(p part, fold func(a, b float64) float64) map[string]float64 {
	type key struct{ rank, model string }
	once := make(map[key]float64)
	for _, s := range r.series[p] {
		k := key{s.rank, s.model}
		if old, ok := once[k]; ok {
			once[k] = math.Max(old, s.value)
		} else {
			once[k] = s.value
		}
	}
	keys := make([]key, 0, len(once))
	for k := range once {
		keys = append(keys, k)
	}
	// A fixed order, so that sums round alike whatever the order of the lines.
	slices.SortFunc(keys, func(a, b key) int {
		return cmp.Or(strings.Compare(a.rank, b.rank), strings.Compare(a.model, b.model))
	})
	out := make(map[string]float64, len(once))
	for _, k := range keys {
		if old, ok := out[k.rank]; ok {
			out[k.rank] = fold(old, once[k])
		} else {
			out[k.rank] = once[k]
		}
	}
	return out
}

func sum(a, b float64) float64 { return a + b }

func (r *reading) rank(label string) *rankFigures {
	f := r.ranks[label]
	if f == nil {
		f = new(rankFigures)
		r.ranks[label] = f
	}
	return f
}

func (r *reading) readGauges() {
	for p := range numGauges {
		fold := sum
		if p == partKVShare {
			fold = math.Max
		}
		for label, v := range r.byRank(p, fold) {
			r.rank(label).gauges[p] = telemetry.V(v)
		}
	}
	for label, v := range r.byRank(partPrefixHits, sum) {
		r.rank(label).hits = telemetry.V(v)
	}
	for label, v := range r.byRank(partPrefixQueries, sum) {
		r.rank(label).queries = telemetry.V(v)
	}
}

// readCapacity reads the size of the KV cache in tokens: as printed, else blocks times block size.
func (r *reading) readCapacity() {
	for _, s := range r.series[partCacheConfig] {
		if !(s.value > 0) {
			continue
		}
		size, ok := positive(s.labels[r.sizeTokens])
		if !ok {
			blocks, okBlocks := positive(s.labels[r.numBlocks])
			block, okBlock := positive(s.labels[r.blockSize])
			if !okBlocks || !okBlock {
				continue
			}
			size = blocks * block
		}
		f := r.rank(s.rank)
		if old, known := f.capacity.Value(); !known || size > old {
			f.capacity = telemetry.V(size)
		}
	}
}

// positive reads a whole number above zero. Engines print None for a size that is not set.
func positive(label string) (float64, bool) {
	n, err := strconv.ParseUint(label, 10, 63)
	return float64(n), err == nil && n > 0
}

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
		s.Running, s.Waiting, s.KVShare = fig.Running, fig.Waiting, fig.KVShare
		s.KVCapacity, s.GenerationRate, s.PrefixHitRate = fig.KVCapacity, fig.GenerationRate, fig.PrefixHitRate
		return
	}
	ids := rankIDs(labels)
	for i, label := range labels {
		s.Ranks = append(s.Ranks, r.ranks[label].figures(ids[i]))
	}
	slices.SortFunc(s.Ranks, func(a, b telemetry.Rank) int { return a.ID - b.ID })
	// A figure without the label beside others with it is one of the whole engine, but for the capacity: of that one
	// cannot tell whether it is of a rank or of all.
	fig := own.figures(0)
	s.Running, s.Waiting, s.KVShare = fig.Running, fig.Waiting, fig.KVShare
	s.GenerationRate, s.PrefixHitRate = fig.GenerationRate, fig.PrefixHitRate
}

// or returns f with the figures it lacks taken from g.
func (f *rankFigures) or(g *rankFigures) *rankFigures {
	out := *f
	first := func(a, b telemetry.Reading) telemetry.Reading {
		if a.Known() {
			return a
		}
		return b
	}
	for p := range out.gauges {
		out.gauges[p] = first(f.gauges[p], g.gauges[p])
	}
	out.capacity = first(f.capacity, g.capacity)
	out.hits, out.queries = first(f.hits, g.hits), first(f.queries, g.queries)
	return &out
}

func (f *rankFigures) figures(id int) telemetry.Rank {
	out := telemetry.Rank{
		ID: id, Running: f.gauges[partRunning], Waiting: f.gauges[partWaiting], KVShare: f.gauges[partKVShare],
		GenerationRate: f.gauges[partGenerationRate], KVCapacity: f.capacity,
	}
	hits, okHits := f.hits.Value()
	queries, okQueries := f.queries.Value()
	if okHits && okQueries && queries != 0 {
		out.PrefixHitRate = telemetry.V(hits / queries)
	}
	return out
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
