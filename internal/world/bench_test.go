package world_test

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/internal/sim"
	"github.com/isobar-go/isobar/internal/world"
)

// conversation is the recorded conversation trace at that speed-up, spread within its ticks of 3 s.
func conversation(tb testing.TB, speed float64) []world.Arrival {
	tb.Helper()
	f, err := os.Open(filepath.Join("..", "..", "..", "shared", "traces", "mooncake_conversation.jsonl.gz"))
	if errors.Is(err, fs.ErrNotExist) {
		tb.Skip("the conversation trace is not here")
	}
	require.NoError(tb, err)
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	require.NoError(tb, err)
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 1<<20)
	var out []world.Arrival
	for lines.Scan() {
		var row struct {
			At     float64  `json:"timestamp"`
			Input  int64    `json:"input_length"`
			Output int64    `json:"output_length"`
			IDs    []uint64 `json:"hash_ids"`
		}
		require.NoError(tb, json.Unmarshal(lines.Bytes(), &row))
		jitter := float64(mixed(uint64(len(out)))%3000) + row.At
		a := world.Arrival{At: time.Duration(jitter / speed * 1e6), OutputTokens: row.Output}
		a.Ask.PromptTokens = row.Input
		for i := range row.Input / 16 {
			a.Blocks = append(a.Blocks, mixed(row.IDs[i/32]<<1|uint64(i%32)>>4)<<4|uint64(i%16))
		}
		out = append(out, a)
	}
	require.NoError(tb, lines.Err())
	return out
}

func mixed(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func fleet(tb testing.TB, n int, profile string) []world.Engine {
	tb.Helper()
	p, ok := sim.ProfileByName(profile)
	require.True(tb, ok)
	engines := make([]world.Engine, n)
	for i := range engines {
		engines[i].Profile = p
	}
	return engines
}

// The recorded conversation on 8 engines, at about the load at which they are busy all the time: requests of simulation per second
// of the processor, which on a machine with other work says more than the wall clock.
func BenchmarkConversation(b *testing.B) {
	arrivals := conversation(b, 2)
	for _, c := range []struct {
		name   string
		change func(*world.Config)
	}{
		{"default", func(*world.Config) {}},
		{"pass-by-pass", func(c *world.Config) { c.PassByPass = true }},
		{"polls-100ms", func(c *world.Config) { c.Telemetry.Period = 100 * time.Millisecond }},
		{"4-gateways-100ms", func(c *world.Config) { c.Gateways, c.Telemetry.Period = 4, 100*time.Millisecond }},
		{"no-router", func(c *world.Config) { c.Chooser = takingTurns(8) }},
		{"exact-cache", func(c *world.Config) { c.Cache.Exact = true }},
	} {
		b.Run(c.name, func(b *testing.B) {
			cfg := world.Config{Engines: fleet(b, 8, "h100-8b")}
			c.change(&cfg)
			b.ReportAllocs()
			n, before := 0, processor(b)
			for b.Loop() {
				if _, err := world.Run(cfg, world.NewList(arrivals)); err != nil {
					b.Fatal(err)
				}
				n += len(arrivals)
			}
			b.ReportMetric(float64(n)/(processor(b)-before).Seconds(), "requests/cpu-s")
			b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "requests/s")
		})
	}
}

// takingTurns is a chooser that costs nothing.
func takingTurns(n int) world.Maker {
	at := 0
	return to(func(*world.Request) (world.Choice, error) {
		at++
		return world.Choice{Engine: at % n}, nil
	})
}
