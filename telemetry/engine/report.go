package engine

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/isobar-go/isobar/telemetry"
)

// series is one sample of a family that the dialect knows.
type series struct {
	value  float64
	labels map[string]string
	rank   string
	model  string
	signal int    // index in dialect.signals
	family string // full name
}

// rankFigures are the figures of one rank. One is known if a series said so.
type rankFigures [numFigures]telemetry.Reading

// reading is one document while it is being read.
type reading struct {
	*dialect
	parser  *Parser
	series  [numParts][]series
	found   bool                    // a family of the engine has a series that passed the filters
	skipped bool                    // and one that did not
	ranks   map[string]*rankFigures // by rank label

	counters map[string]float64
	slots    int // adapters that fit at once, 0 = unknown
}

func (d *dialect) textReport(families map[string]*dto.MetricFamily, declared map[string]bool, p *Parser,
	at time.Time) (Report, error) {
	r := reading{dialect: d, parser: p, ranks: make(map[string]*rankFigures)}
	for i := range d.signals {
		r.collect(i, families)
	}
	r.take(-1, partProcessStart, families[processStart])
	adaptersDeclared := false
	for _, sig := range d.signals {
		if sig.part == partAdapterLoaded {
			adaptersDeclared = d.anyName(sig.families, func(name string) bool { return declared[name] })
		}
	}
	if !r.found && !adaptersDeclared {
		if r.skipped {
			return Report{}, fmt.Errorf("engine: %w %s for %s", ErrNoSignals, d.kind, p.filters())
		}
		return Report{}, fmt.Errorf("engine: %w %s", ErrNoSignals, d.kind)
	}
	if err := r.readFigures(); err != nil {
		return Report{}, err
	}
	r.readCapacity()
	if err := r.tooManyRanks(); err != nil {
		return Report{}, err
	}
	r.readCounters()
	r.slots = r.adapterSlots()
	rep := r.report(at)
	s := &rep.Snapshot
	s.Epoch = r.epoch()
	s.Asleep = r.asleep()
	s.Adapters = r.adapters(adaptersDeclared)
	if !r.evidence() {
		s.Evidence = telemetry.EvidenceNone
	}
	rep.Activity = r.activity()
	return rep, nil
}

// report makes the parts that text and JSON documents have in common.
func (r *reading) report(at time.Time) Report {
	rep := Report{AdapterSlots: r.slots, counters: r.counters}
	rep.Snapshot.ObservedAt = at
	rep.Snapshot.Source = string(r.kind)
	rep.Snapshot.KVOccupied = r.kv != KVHeld // nor is what is not known compared with that of others
	r.place(&rep.Snapshot)
	return rep
}

// filters names what the configuration lets through.
func (p *Parser) filters() string {
	var all []string
	if p.Model != "" {
		all = append(all, fmt.Sprintf("Model %q", p.Model))
	}
	for _, name := range slices.Sorted(maps.Keys(p.Labels)) {
		all = append(all, fmt.Sprintf("label %s=%q", name, p.Labels[name]))
	}
	return strings.Join(all, ", ")
}

// anyName calls f with the full names of families, the newest first, until it returns true.
func (d *dialect) anyName(families []string, f func(string) bool) bool {
	for _, family := range families {
		for _, prefix := range d.prefixes {
			if f(prefix + family) {
				return true
			}
		}
	}
	return false
}

// collect takes the series of the first family of a signal that has any.
func (r *reading) collect(i int, families map[string]*dto.MetricFamily) {
	sig := &r.signals[i]
	took := r.anyName(sig.families, func(name string) bool { return r.take(i, sig.part, families[name]) })
	r.found = r.found || took
}

// take takes the series of a family that pass the filters and reports whether there are any.
func (r *reading) take(i int, p part, family *dto.MetricFamily) bool {
	n := len(r.series[p])
	for _, m := range family.GetMetric() {
		labels := make(map[string]string, len(m.GetLabel()))
		for _, l := range m.GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		if i >= 0 && r.signals[i].label != "" && labels[r.signals[i].label] != r.signals[i].value {
			continue
		}
		s := series{value: sampleValue(m), labels: labels, signal: i, family: family.GetName(),
			rank: joined(labels, r.rankLabels), model: first(labels, r.modelLabels)}
		if !r.parser.passes(&s) {
			r.skipped = true
			continue
		}
		r.series[p] = append(r.series[p], s)
	}
	return len(r.series[p]) > n
}

// passes applies Model and Labels to a series.
func (p *Parser) passes(s *series) bool {
	if p.Model != "" && s.model != "" && s.model != p.Model {
		return false
	}
	for name, want := range p.Labels {
		if got, ok := s.labels[name]; ok && got != want {
			return false
		}
	}
	return true
}

// byRank folds the series of a part into one number for each rank: copies of one model on one rank, which differ in
// labels that mean nothing here (tp_rank, pp_rank, pid, engine_type), count once, by the greatest; different models and
// different signals are joined.
func (r *reading) byRank(p part) map[string]float64 {
	type key struct {
		rank, model string
		signal      int
	}
	once := make(map[key]float64)
	for i := range r.series[p] {
		s := &r.series[p][i]
		k := key{s.rank, s.model, s.signal}
		if old, ok := once[k]; ok {
			once[k] = max(old, s.value)
		} else {
			once[k] = s.value
		}
	}
	// A fixed order, so that sums round alike whatever the order of the lines.
	keys := slices.SortedFunc(maps.Keys(once), func(a, b key) int {
		return cmp.Or(strings.Compare(a.rank, b.rank), strings.Compare(a.model, b.model), a.signal-b.signal)
	})
	out := make(map[string]float64, len(once))
	for _, k := range keys {
		if old, ok := out[k.rank]; ok {
			out[k.rank] = p.fold(old, once[k])
		} else {
			out[k.rank] = once[k]
		}
	}
	return out
}

func (r *reading) rank(label string) *rankFigures {
	f := r.ranks[label]
	if f == nil {
		f = new(rankFigures)
		r.ranks[label] = f
	}
	return f
}

// maxRanks is how many ranks, or replicas read as ranks, one document may have: far more than an engine has, and few enough
// that neither the reading nor whoever gets the snapshot is held up by a label that names something else.
const maxRanks = 4096

func (r *reading) tooManyRanks() error {
	if len(r.ranks) <= maxRanks {
		return nil
	}
	return fmt.Errorf("engine: %w: more than %d ranks", ErrTooLarge, maxRanks)
}

func (r *reading) readFigures() error {
	for p := range numFigures {
		if len(r.series[p]) == 0 {
			continue
		}
		for label, v := range r.byRank(p) {
			r.rank(label)[p] = telemetry.V(v)
			if err := r.tooManyRanks(); err != nil {
				return err
			}
		}
	}
	return nil
}

// readCapacity reads the size of the KV cache from labels, in tokens: as printed, else blocks times block size.
func (r *reading) readCapacity() {
	printed := make(map[string]float64)
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
		printed[s.rank] = max(printed[s.rank], size)
	}
	for label, size := range printed {
		if f := r.rank(label); !f[partKVCapacity].Known() {
			f[partKVCapacity] = telemetry.V(size)
		}
	}
}

// positive reads a whole number above zero. Engines print None for a size that is not set.
func positive(label string) (float64, bool) {
	n, err := strconv.ParseUint(label, 10, 63)
	return float64(n), err == nil && n > 0
}
