package engine_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/isobar-go/isobar/telemetry/engine"
)

// BenchmarkParse reads a document of the size that a server with many histograms prints.
func BenchmarkParse(b *testing.B) {
	body := bytes.NewBuffer(bytes.Clone(payload(b, "vllm-v1.prom")))
	for i := range 1200 {
		fmt.Fprintf(body, "vllm:some_latency_%d_seconds_bucket{engine=\"0\",le=\"%d.0\",model_name=\"org/model\"} %d.0\n", i/30,
			i%30, i)
	}
	b.SetBytes(int64(body.Len()))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := engine.Parse(engine.VLLM, body.Bytes(), sent); err != nil {
			b.Fatal(err)
		}
	}
}
