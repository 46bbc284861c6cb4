package telemetry_test

import (
	"encoding/binary"
	"math"
	"testing"
	"time"

	"github.com/isobar-go/isobar/telemetry"
)

// FuzzObserve feeds arbitrary numbers and times to a store and checks what every state promises.
func FuzzObserve(f *testing.F) {
	f.Add([]byte("\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f"))
	f.Add(binary.LittleEndian.AppendUint64([]byte{3, 1, 2, 0xff, 9}, math.Float64bits(math.NaN())))
	f.Add(append([]byte{9, 5, 0xff, 0x7f}, make([]byte, 200)...))
	f.Fuzz(func(t *testing.T, data []byte) {
		s := newStore()
		next := func() byte {
			if len(data) == 0 {
				return 0
			}
			b := data[0]
			data = data[1:]
			return b
		}
		value := func() float64 {
			if next()%2 == 0 || len(data) < 8 {
				return float64(next())
			}
			bits := binary.LittleEndian.Uint64(data)
			data = data[8:]
			return math.Float64frombits(bits)
		}
		reading := func() telemetry.Reading {
			switch next() % 4 {
			case 0:
				return telemetry.Reading{}
			case 1:
				return telemetry.At(value(), at(float64(int8(next()))))
			}
			return v(value())
		}
		for range 64 {
			if len(data) == 0 {
				break
			}
			now := at(float64(int8(next())))
			in := snap{Running: reading(), Waiting: reading(), WaitingTokens: reading(), KVUsed: reading(),
				KVCapacity: reading(), KVShare: reading(), PrefixHitRate: reading(), MaxRunning: reading(),
				Health: telemetry.Health(next()), Asleep: telemetry.Tri(next()), Evidence: telemetry.Evidence(next() % 2),
				Epoch: []string{"", "a", "b"}[next()%3]}
			if b := next(); b > 10 {
				in.ObservedAt = now.Add(-time.Duration(b-20) * time.Second)
			}
			for range next() % 4 {
				in.Ranks = append(in.Ranks, rank{ID: int(int8(next())), Running: reading(), KVUsed: reading(),
					KVCapacity: reading(), KVShare: reading()})
			}
			res := s.Observe(now, in, int64(int8(next())))
			check(t, now, s.State(), res)
		}
	})
}

func check(t *testing.T, now time.Time, st *telemetry.State, res result) {
	t.Helper()
	figures := []telemetry.Reading{st.Running, st.Waiting, st.WaitingTokens, st.DecodeTokens, st.GenerationRate,
		st.KVUsed, st.KVCapacity, st.MaxRunning, st.KVShare, st.PrefixHitRate}
	for i, r := range figures {
		x, known := r.Value()
		limit := 1e15
		if i >= 8 {
			limit = 1
		}
		if !known && x != 0 || !(x >= 0 && x <= limit) {
			t.Fatalf("figure %d is %v, known %v", i, x, known)
		}
	}
	used, okUsed := st.KVUsed.Value()
	capacity, okCapacity := st.KVCapacity.Value()
	if okUsed && okCapacity && used > capacity || okCapacity && capacity == 0 {
		t.Fatalf("%v tokens in a cache of %v", used, capacity)
	}
	if (st.Suspect == "") != st.SuspectSince.IsZero() || res.Suspect != (st.Suspect != "") {
		t.Fatalf("suspect %q since %v, result %+v", st.Suspect, st.SuspectSince, res)
	}
	if res.EpochChanged && st.NewestAt.After(now) {
		t.Fatalf("a figure of %v survived the restart seen at %v", st.NewestAt, now)
	}
	for i := range st.Ranks {
		if st.Ranks[i].ID < 0 || i > 0 && st.Ranks[i-1].ID >= st.Ranks[i].ID {
			t.Fatalf("ranks out of order: %+v", st.Ranks)
		}
	}
	if st.Health > telemetry.HealthOOM || st.Asleep > telemetry.TriYes {
		t.Fatalf("health %v, asleep %v", st.Health, st.Asleep)
	}
	if res.Dropped != "" && res.EpochChanged {
		t.Fatalf("dropped, and yet %+v", res)
	}
}
