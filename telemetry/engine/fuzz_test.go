package engine_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/isobar-go/isobar/telemetry"
	"github.com/isobar-go/isobar/telemetry/engine"
)

// FuzzParse checks that no document can break the parser, that an error comes with nothing else, and that the order of
// lines changes nothing.
func FuzzParse(f *testing.F) {
	f.Add(payload(f, "vllm-v1.prom"))
	f.Add(payload(f, "vllm-v0.prom"))
	f.Add([]byte("vllm:num_requests_running{engine=\"0\"} 1\nvllm:num_requests_running{engine=\"1\"} 2 170\n"))
	f.Add([]byte("vllm:lora_adapter_loaded{adapter_name=\"a\",level=\"gpu\",rank=\"8\"} 1\n"))
	f.Add([]byte("vllm:lora_requests_info{running_lora_adapters=\"a,b\"} 1.7e9\nprocess_start_time_seconds 3\n"))
	f.Add([]byte(`{"error": "no such page"}`))
	f.Add([]byte("<html></html>"))
	f.Fuzz(func(t *testing.T, body []byte) {
		s, err := engine.Parse(engine.VLLM, body, sent)
		if err != nil {
			if s.Source != "" || s.Ranks != nil || s.Running.Known() || s.Adapters.Known || !s.ObservedAt.IsZero() {
				t.Fatalf("error %v and %+v", err, s)
			}
			return
		}
		if len(s.Ranks) == 1 {
			t.Fatalf("one rank alone: %+v", s.Ranks)
		}
		a := observe(t, s)
		lines := bytes.SplitAfter(body, []byte("\n"))
		slices.Reverse(lines)
		reversed := bytes.Join(lines, nil)
		if !bytes.HasSuffix(reversed, []byte("\n")) || len(bytes.TrimSpace(lines[0])) > 0 || startsLikeMarkup(reversed) {
			return // a last line without its end would run into the next
		}
		s, err = engine.Parse(engine.VLLM, reversed, sent)
		if err != nil {
			t.Fatalf("another order of lines: %v", err)
		}
		if b := observe(t, s); a != b {
			t.Fatalf("another order of lines: %v, was %v", b, a)
		}
	})
}

func startsLikeMarkup(body []byte) bool { return bytes.HasPrefix(bytes.TrimSpace(body), []byte("<")) }

func observe(t *testing.T, s telemetry.Snapshot) [5]telemetry.Reading {
	store := telemetry.NewStore(telemetry.StoreConfig{})
	if res := store.Observe(sent, s, 0); slices.Contains(res.Defects, "ranks") || slices.Contains(res.Defects, "adapters") {
		t.Fatalf("the parser made a defective snapshot: %+v", s)
	}
	st := store.State()
	return [5]telemetry.Reading{st.Running, st.Waiting, st.KVShare, st.KVCapacity, st.MaxRunning}
}
