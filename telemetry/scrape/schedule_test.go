package scrape_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/isobar-go/isobar/telemetry/scrape"
)

func TestBackoff(t *testing.T) {
	c := scrape.Config{Every: time.Second, MaxBackoff: 10 * time.Second}.WithDefaults()
	for failures, want := range []time.Duration{0, 1, 2, 4, 8, 10, 10} {
		assert.Equal(t, want*time.Second, c.Backoff(failures), failures)
	}
	assert.Equal(t, 10*time.Second, c.Backoff(1<<40), "far beyond what could be doubled")
	c.MaxBackoff = scrape.None
	assert.Equal(t, time.Second, c.Backoff(9))
}

func TestWaitsStayInside(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		every := time.Duration(rapid.Int64Range(int64(time.Millisecond), int64(24*time.Hour)).Draw(t, "every"))
		c := scrape.Config{
			Every: every, Seed: rapid.Uint64().Draw(t, "seed"),
			Jitter:     rapid.SampledFrom([]float64{scrape.None, 0, 0.01, 0.5}).Draw(t, "jitter"),
			MaxBackoff: rapid.SampledFrom([]time.Duration{scrape.None, every, min(7*every, 24*time.Hour)}).Draw(t, "cap"),
		}.WithDefaults()
		r := scrape.NewRandom(c.Seed, scrape.Target{ID: "a"})
		share := max(c.Jitter, 0)
		around := func(what string, got time.Duration, low, high float64) {
			if f := float64(got) / float64(every); f < low-1e-6 || f > high+1e-6 {
				t.Fatalf("%s = %v, %g of %v, not from %g to %g", what, got, f, every, low, high)
			}
		}
		for range 20 {
			around("FirstWait", c.FirstWait(r), 0, share)
			around("Wait", c.Wait(false, r), 1-share, 1+share)
			if share == 0 {
				around("Wait of the second", c.Wait(true, r), 1, 1)
			} else {
				around("Wait of the second", c.Wait(true, r), 0.5, 1.5)
			}
			failures := rapid.IntRange(1, 70).Draw(t, "failures")
			got, most := c.RetryWait(failures, r), c.Backoff(failures)
			if got > most || float64(got) < (1-share)*float64(most)-1 {
				t.Fatalf("RetryWait %v of Backoff %v", got, most)
			}
			if most < every || most > max(every, c.MaxBackoff) {
				t.Fatalf("Backoff %v, every %v, cap %v", most, every, c.MaxBackoff)
			}
		}
	})
}

func TestTickAfter(t *testing.T) {
	start := time.Unix(1000, 0)
	rapid.Check(t, func(t *rapid.T) {
		every := time.Duration(rapid.Int64Range(1, 1000).Draw(t, "every"))
		now := start.Add(time.Duration(rapid.Int64Range(-5000, 5000).Draw(t, "now")))
		want := start
		for !want.After(now) {
			want = want.Add(every)
		}
		if got := scrape.TickAfter(start, every, now); !got.Equal(want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}

// Draws are an endpoint's own: they depend on the seed, the ID and the incarnation, each by itself.
func TestRandom(t *testing.T) {
	draw := func(seed uint64, id, incarnation string) uint64 {
		return scrape.NewRandom(seed, scrape.Target{ID: id, Incarnation: incarnation}).Uint64()
	}
	require.Equal(t, draw(1, "ab", "c"), draw(1, "ab", "c"))
	seen := map[uint64]bool{}
	for _, v := range []uint64{draw(1, "ab", "c"), draw(2, "ab", "c"), draw(1, "a", "bc"), draw(1, "abc", ""), draw(1, "ab", "d")} {
		assert.False(t, seen[v])
		seen[v] = true
	}
}
