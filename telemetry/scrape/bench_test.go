package scrape_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/isobar-go/isobar/telemetry"
	"github.com/isobar-go/isobar/telemetry/scrape"
)

// document is what a vLLM of a hundred lines prints, histograms and help texts included.
func document() string {
	var b strings.Builder
	const labels = `{engine="0",model_name="meta-llama/Llama-3.1-70B-Instruct"}`
	gauge := func(name string, v any) {
		fmt.Fprintf(&b, "# HELP %s What it is.\n# TYPE %s gauge\n%s%s %v\n", name, name, name, labels, v)
	}
	gauge("vllm:num_requests_running", 31.0)
	gauge("vllm:num_requests_waiting", 4.0)
	gauge("vllm:kv_cache_usage_perc", 0.71)
	for _, name := range []string{"prefix_cache_queries", "prefix_cache_hits", "prompt_tokens", "generation_tokens", "num_preemptions"} {
		fmt.Fprintf(&b, "# HELP vllm:%s What it is.\n# TYPE vllm:%s counter\nvllm:%s_total%s 1.234567e+06\n", name, name, name, labels)
	}
	fmt.Fprintf(&b, "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"27000\",engine=\"0\"} 1.0\n")
	for _, name := range []string{"time_to_first_token_seconds", "time_per_output_token_seconds", "e2e_request_latency_seconds"} {
		fmt.Fprintf(&b, "# HELP vllm:%s What it is.\n# TYPE vllm:%s histogram\n", name, name)
		for le := range 21 {
			fmt.Fprintf(&b, "vllm:%s_bucket{engine=\"0\",le=\"%g\",model_name=\"meta-llama/Llama-3.1-70B-Instruct\"} %d\n", name, 0.001*float64(le*le), 100*le)
		}
		fmt.Fprintf(&b, "vllm:%s_sum%s 1.5\nvllm:%s_count%s 2000\n", name, labels, name, labels)
	}
	return b.String()
}

// null is a sink that counts.
type null struct{ good, bad chan struct{} }

func (n null) Observe(string, telemetry.Snapshot) error {
	n.good <- struct{}{}
	return nil
}

func (n null) ScrapeFailed(string, error) error {
	n.bad <- struct{}{}
	return nil
}

// BenchmarkPoll is one poll from its start to its delivery, the parsing of a document of a hundred lines included, in a
// fleet of 512 of which each endpoint is due as soon as it may be.
func BenchmarkPoll(b *testing.B) {
	for _, parser := range []string{"engine", "none"} {
		b.Run("parser="+parser, func(b *testing.B) {
			text := document()
			sink := null{make(chan struct{}), make(chan struct{})}
			cfg := scrape.Config{
				Targets: func() []scrape.Target { return nil }, Sink: sink, Every: time.Millisecond,
				Client: transport(func(req *http.Request) (*http.Response, error) { return response(req, 200, text), nil }).client(),
			}
			if parser == "none" {
				cfg.Parse = sloppy
			}
			list := fleetOf(512)
			cfg.Targets = func() []scrape.Target { return list }
			p, err := scrape.New(cfg)
			if err != nil {
				b.Fatal(err)
			}
			ctx, cancel := context.WithCancel(b.Context())
			stopped := make(chan error, 1)
			go func() { stopped <- p.Run(ctx) }()
			b.ReportAllocs()
			for b.Loop() {
				select {
				case <-sink.good:
				case <-sink.bad:
					b.Fatal("failed")
				}
			}
			cancel()
			for {
				select {
				case <-sink.good:
				case <-sink.bad:
				case <-stopped:
					return
				}
			}
		})
	}
}

func fleetOf(n int) []scrape.Target {
	var list []scrape.Target
	for i := range n {
		list = append(list, target(fmt.Sprintf("engine%03d", i), "one"))
	}
	return list
}

func BenchmarkStats512(b *testing.B) {
	list := fleetOf(512)
	sink := null{make(chan struct{}, 512), make(chan struct{}, 512)}
	p, err := scrape.New(scrape.Config{
		Targets: func() []scrape.Target { return list }, Sink: sink, Every: time.Hour, Jitter: scrape.None, Parse: sloppy,
		Client: transport(func(req *http.Request) (*http.Response, error) { return response(req, 200, "1"), nil }).client(),
	})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- p.Run(ctx) }()
	for range list {
		<-sink.good
	}
	b.ReportAllocs()
	for b.Loop() {
		if len(p.Stats().Endpoints) != len(list) {
			b.Fatal("endpoints are missing")
		}
	}
	cancel()
	<-stopped
}
