package telemetry_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/isobar-go/isobar/telemetry"
)

// The model keeps every word that was ever delivered, in the order of arrival, and works the answer out from all of
// them each time it is asked. It shares nothing with the store but the rules.

type modelWord struct {
	figure int // 0 running, 1 waiting, 2 kv share, 3 kv used, 4 kv capacity
	at     time.Time
	value  float64
	known  bool
	epoch  string
}

const modelFigures = 5

type model struct {
	words    []modelWord
	epoch    string
	epochAt  time.Time
	sawEpoch bool
	changed  time.Time // of the report that told of the last restart; zero if there was none
}

// deliver adds a snapshot and returns whether it told of a restart.
func (m *model) deliver(now time.Time, s snap) (restart bool) {
	if s.ObservedAt.After(now) {
		return false
	}
	if s.Epoch != "" {
		newer := !m.sawEpoch || s.ObservedAt.After(m.epochAt) || m.epochAt.After(now)
		if m.sawEpoch && m.epoch != s.Epoch {
			if !newer {
				return false
			}
			restart = true
			m.changed = s.ObservedAt
			m.distrustFuture(now, 0, 1, 2, 3, 4)
			m.drop(func(w modelWord) bool { return !w.at.After(s.ObservedAt) })
		}
		if newer {
			m.epoch, m.epochAt, m.sawEpoch = s.Epoch, s.ObservedAt, true
		}
	}
	for i, r := range []telemetry.Reading{s.Running, s.Waiting, s.KVShare, s.KVUsed, s.KVCapacity} {
		v, reported := r.Value()
		if !reported {
			continue
		}
		w := modelWord{figure: i, at: r.ObservedAt(), value: v, known: v >= 0 && v <= 1e15, epoch: s.Epoch}
		if w.at.IsZero() {
			w.at = s.ObservedAt
		}
		if i == 2 && v > 1 && !math.IsInf(v, 1) {
			w.value, w.known = 1, true
		}
		if i == 4 && v == 0 {
			w.known = false
		}
		mayBeOfTheOldProcess := w.epoch == "" && w.at.Before(m.changed) && !m.changed.After(now)
		if w.at.After(now) || mayBeOfTheOldProcess {
			continue
		}
		m.distrustFuture(now, i)
		m.words = append(m.words, w)
	}
	return restart
}

// distrustFuture forgets a figure of which a word is from after now: the clock went backwards, and the words it had
// replaced do not come back.
func (m *model) distrustFuture(now time.Time, figures ...int) {
	for _, f := range figures {
		if w, ok := m.newest(f); ok && w.at.After(now) {
			m.drop(func(w modelWord) bool { return w.figure == f })
		}
	}
}

func (m *model) drop(gone func(modelWord) bool) {
	var kept []modelWord
	for _, w := range m.words {
		if !gone(w) {
			kept = append(kept, w)
		}
	}
	m.words = kept
}

// newest returns the newest word on a figure; of equally old ones the first that is known.
func (m *model) newest(figure int) (best modelWord, ok bool) {
	for _, w := range m.words {
		if w.figure == figure && (!ok || w.at.After(best.at) || w.at.Equal(best.at) && !best.known && w.known) {
			best, ok = w, true
		}
	}
	return best, ok
}

// answer returns what is known of a figure, as text.
func (m *model) answer(figure int) string {
	w, ok := m.newest(figure)
	used, _ := m.newest(3)
	capacity, _ := m.newest(4)
	if used.known && capacity.known {
		switch {
		case figure == 3:
			w.value = min(used.value, capacity.value)
		case figure == 2 && (!ok || used.at.After(w.at) || used.at.Equal(w.at) && !w.known):
			w = modelWord{at: used.at, known: true, value: min(1, used.value/capacity.value)}
		}
	}
	return describe(w.value, w.known, w.at)
}

func describe(value float64, known bool, when time.Time) string {
	if !known {
		return "unknown"
	}
	return fmt.Sprintf("%v at %d", value, when.Sub(at(0))/time.Second)
}

func storeAnswer(st *telemetry.State, figure int) string {
	r := []telemetry.Reading{st.Running, st.Waiting, st.KVShare, st.KVUsed, st.KVCapacity}[figure]
	v, known := r.Value()
	return describe(v, known, r.ObservedAt())
}

var modelValue = rapid.Custom(func(t *rapid.T) float64 {
	if rapid.IntRange(0, 9).Draw(t, "odd") == 0 {
		return rapid.SampledFrom([]float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, 2e15, 0}).Draw(t, "value")
	}
	return float64(rapid.IntRange(0, 6).Draw(t, "value"))
})

func drawSnapshot(t *rapid.T, seconds, now int, epochs []string) snap {
	s := snap{ObservedAt: at(float64(seconds)), Source: rapid.SampledFrom([]string{"poll", "header"}).Draw(t, "source"),
		Epoch: rapid.SampledFrom(epochs).Draw(t, "epoch")}
	for i, r := range []*telemetry.Reading{&s.Running, &s.Waiting, &s.KVShare, &s.KVUsed, &s.KVCapacity} {
		switch rapid.IntRange(0, 5).Draw(t, fmt.Sprint("how", i)) {
		case 0, 1:
		case 2:
			*r = telemetry.At(modelValue.Draw(t, "v"), at(float64(now-rapid.IntRange(-1, 6).Draw(t, "age"))))
		default:
			*r = v(modelValue.Draw(t, "v"))
		}
	}
	return s
}

func TestStoreAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		store, m, now := newStore(), new(model), 50
		observations, restarts := uint64(0), uint64(0)
		var delivered []snap
		deliver := func(t *rapid.T, s snap) {
			want := m.deliver(at(float64(now)), s)
			res := store.Observe(at(float64(now)), s, int64(rapid.IntRange(0, 1).Draw(t, "leases")))
			if res.EpochChanged != want {
				t.Fatalf("epoch changed: %v, want %v", res.EpochChanged, want)
			}
			observations++
			if want {
				restarts++
			}
			delivered = append(delivered, s)
		}
		t.Repeat(map[string]func(*rapid.T){
			"observe": func(t *rapid.T) {
				age := rapid.IntRange(-1, 8).Draw(t, "age")
				deliver(t, drawSnapshot(t, now-age, now, []string{"", "", "a", "a", "b"}))
			},
			"again": func(t *rapid.T) {
				if len(delivered) == 0 {
					t.Skip("nothing to repeat")
				}
				deliver(t, rapid.SampledFrom(delivered).Draw(t, "snapshot"))
			},
			"advance": func(t *rapid.T) { now += rapid.IntRange(0, 3).Draw(t, "seconds") },
			"backwards": func(t *rapid.T) {
				if rapid.IntRange(0, 3).Draw(t, "really") == 0 {
					now -= rapid.IntRange(1, 10).Draw(t, "seconds")
				}
			},
			"failed poll": func(*rapid.T) { store.ScrapeError(at(float64(now)), nil) },
			"trust":       func(*rapid.T) { store.Trust(at(float64(now))) },
			"": func(t *rapid.T) {
				st := store.State()
				for f := range modelFigures {
					if got, want := storeAnswer(st, f), m.answer(f); got != want {
						t.Fatalf("figure %d is %q, want %q", f, got, want)
					}
				}
				if st.Epoch != m.epoch {
					t.Fatalf("epoch %q, want %q", st.Epoch, m.epoch)
				}
				c := store.Counters()
				if c.Observations != observations || c.EpochChanges != restarts {
					t.Fatalf("counted %d observations and %d restarts, want %d and %d", c.Observations, c.EpochChanges,
						observations, restarts)
				}
			},
		})
	})
}

func TestArrivalOrderDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 8).Draw(t, "snapshots")
		var in []snap
		for i := range n {
			s := snap{ObservedAt: at(float64(i)), Source: fmt.Sprint(i), Epoch: "a"}
			for j, r := range []*telemetry.Reading{&s.Running, &s.Waiting, &s.KVShare, &s.KVUsed, &s.KVCapacity,
				&s.GenerationRate} {
				if rapid.Bool().Draw(t, fmt.Sprint("has", j)) {
					*r = v(float64(rapid.IntRange(1, 5).Draw(t, "value")) / 5)
				}
			}
			s.Health = telemetry.Health(rapid.IntRange(0, 3).Draw(t, "health"))
			s.Asleep = telemetry.Tri(rapid.IntRange(0, 2).Draw(t, "asleep"))
			s.Adapters.Known = rapid.Bool().Draw(t, "adapters")
			if rapid.Bool().Draw(t, "ranks") {
				s.Ranks = []rank{{ID: 0, Running: v(float64(i))}}
			}
			in = append(in, s)
		}
		in = append(in, rapid.SampledFrom(in).Draw(t, "twice"))
		run := func(in []snap) telemetry.State {
			s := newStore()
			for _, one := range in {
				s.Observe(at(100), one, 1)
			}
			return *s.State()
		}
		got, want := run(rapid.Permutation(in).Draw(t, "order")), run(in)
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("%+v\nwant %+v", got, want)
		}
	})
}

// TestSuspicionAgainstModel counts backwards over the whole history at every step.
func TestSuspicionAgainstModel(t *testing.T) {
	const after = 3
	rapid.Check(t, func(t *rapid.T) {
		type seen struct {
			running, waiting float64
			live             int64
		}
		store := telemetry.NewStore(telemetry.StoreConfig{FrozenAfter: after})
		var history []seen
		frozen := false
		for i := range rapid.IntRange(1, 40).Draw(t, "observations") {
			o := seen{float64(rapid.IntRange(0, 1).Draw(t, "running")), float64(rapid.IntRange(0, 1).Draw(t, "waiting")),
				int64(rapid.IntRange(0, 5).Draw(t, "live") / 5)}
			history = append(history, o)
			store.Observe(at(float64(i)), snap{Running: v(o.running), Waiting: v(o.waiting)}, o.live)

			same, stuck := 0, 0
			for j := i; j >= 0 && history[j] == o && o.live == 0 && o.running+o.waiting > 0; j-- {
				same++
			}
			for j := i; j >= 0 && history[j].running == 0 && history[j].waiting > 0; j-- {
				stuck++
			}
			moved := i == 0 || history[i-1].running != o.running || history[i-1].waiting != o.waiting
			frozen = frozen && !moved || same >= after
			want := telemetry.SuspectReason("")
			switch {
			case stuck >= after:
				want = telemetry.SuspectWedged
			case frozen:
				want = telemetry.SuspectFrozen
			}
			if got := store.State().Suspect; got != want {
				t.Fatalf("suspect %q, want %q after %v", got, want, history)
			}
		}
	})
}
