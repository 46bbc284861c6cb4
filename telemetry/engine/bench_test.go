package engine_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/isobar-go/isobar/telemetry/engine"
)

// long returns a payload filled up to n lines by histograms, as servers with many of them print.
func long(b *testing.B, name, prefix string, n int) []byte {
	body := bytes.NewBuffer(bytes.Clone(payload(b, name)))
	for i := range n - bytes.Count(body.Bytes(), []byte("\n")) {
		fmt.Fprintf(body, "%ssome_latency_%d_seconds_bucket{engine=\"0\",le=\"%d.0\",model_name=\"org/model\"} %d.0\n", prefix, i/30, i%30, i)
	}
	return body.Bytes()
}

// BenchmarkParse reads documents of 2,000 lines.
func BenchmarkParse(b *testing.B) {
	for _, tc := range []struct {
		kind         engine.Kind
		name, prefix string
	}{
		{engine.VLLM, "vllm-v1.prom", "vllm:"}, {engine.VLLM, "vllm-ray.prom", "ray_vllm_"},
		{engine.SGLang, "sglang-dp2.prom", "sglang:"}, {engine.Triton, "triton.prom", "nv_"}, {engine.TGI, "tgi.prom", "tgi_"},
	} {
		b.Run(tc.name, func(b *testing.B) {
			body := long(b, tc.name, tc.prefix, 2000)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := engine.Parse(tc.kind, body, sent); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkParseLoads(b *testing.B) {
	body := payload(b, "sglang-loads.json")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := engine.Parse(engine.SGLangLoads, body, sent); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDetect(b *testing.B) {
	body := long(b, "vllm-v1.prom", "vllm:", 2000)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := engine.Detect(body); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkParseLoadHeader reads what comes with every response.
func BenchmarkParseLoadHeader(b *testing.B) {
	for _, value := range []string{
		"TEXT named_metrics.kv_cache_usage_perc=0.25, named_metrics.num_requests_waiting=3, named_metrics.num_requests_running=7",
		`JSON {"named_metrics": {"kv_cache_usage_perc": 0.25, "num_requests_waiting": 3, "num_requests_running": 7}}`,
	} {
		b.Run(value[:4], func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := engine.ParseLoadHeader(value, sent); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
