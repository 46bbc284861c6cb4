package engine_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/isobar-go/isobar/telemetry"
	"github.com/isobar-go/isobar/telemetry/engine"
)

// addLines adds every sample of a payload as a document: the time that the fuzzer takes to minimise one grows with the square
// of its length.
func addLines(f *testing.F, name string) {
	for line := range bytes.Lines(payload(f, name)) {
		if len(line) > 1 && line[0] != '#' {
			f.Add(line)
		}
	}
}

// FuzzParse checks that no document can break the parser, that an error comes with nothing else, and that the order of
// lines changes nothing.
func FuzzParse(f *testing.F) {
	addLines(f, "vllm-v1.prom")
	addLines(f, "vllm-v0.prom")
	f.Add([]byte("vllm:num_requests_running{engine=\"0\"} 1\nvllm:num_requests_running{engine=\"1\"} 2 170\n"))
	f.Add([]byte("vllm:lora_adapter_loaded{adapter_name=\"a\",level=\"gpu\",rank=\"8\"} 1\n"))
	f.Add([]byte("vllm:lora_requests_info{running_lora_adapters=\"a,b\"} 1.7e9\nprocess_start_time_seconds 3\n"))
	f.Add([]byte(`{"error": "no such page"}`))
	f.Add([]byte("<html></html>"))
	f.Add([]byte("vllm:num_requests_running{a=\"0\"} 0\n{0\n"))
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
		if !bytes.HasSuffix(reversed, []byte("\n")) || len(bytes.TrimSpace(lines[0])) > 0 || startsLikeAnother(reversed) {
			return // a last line without its end would run into the next; the first one tells what a document is
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

func startsLikeAnother(body []byte) bool {
	body = bytes.TrimSpace(body)
	return len(body) > 0 && bytes.IndexByte([]byte("<[{"), body[0]) >= 0
}

func observe(t *testing.T, s telemetry.Snapshot) [5]telemetry.Reading {
	store := telemetry.NewStore(telemetry.StoreConfig{})
	if res := store.Observe(sent, s, 0); slices.Contains(res.Defects, "ranks") || slices.Contains(res.Defects, "adapters") {
		t.Fatalf("the parser made a defective snapshot: %+v", s)
	}
	st := store.State()
	return [5]telemetry.Reading{st.Running, st.Waiting, st.KVShare, st.KVCapacity, st.MaxRunning}
}
