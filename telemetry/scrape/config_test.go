package scrape_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/telemetry/scrape"
)

func required() scrape.Config {
	return scrape.Config{Targets: newFleet().targets, Sink: &recorder{}}
}

func TestConfigDefaults(t *testing.T) {
	p, err := scrape.New(required())
	require.NoError(t, err)
	c := p.Config()
	assert.Equal(t, 500*time.Millisecond, c.Every)
	assert.Equal(t, 2*time.Second, c.Timeout)
	assert.Equal(t, 10*time.Second, c.MaxBackoff)
	assert.Equal(t, 0.1, c.Jitter)
	assert.Zero(t, c.MaxConcurrent)
	assert.EqualValues(t, 8<<20, c.MaxBytes)
	assert.Equal(t, 3, c.MaxRedirects)
	assert.NotNil(t, c.Now)

	slow := required()
	slow.Every = time.Minute
	assert.Equal(t, time.Minute, slow.WithDefaults().MaxBackoff, "not below Every")

	none := required()
	none.Jitter, none.MaxBackoff, none.MaxRedirects = -0.3, -5*time.Second, -7
	require.NoError(t, none.Validate())
	none = none.WithDefaults()
	assert.EqualValues(t, scrape.None, none.Jitter)
	assert.EqualValues(t, scrape.None, none.MaxBackoff)
	assert.EqualValues(t, scrape.None, none.MaxRedirects)
	again := none.WithDefaults()
	assert.Equal(t, none.Jitter, again.Jitter)
	assert.Equal(t, none.MaxBackoff, again.MaxBackoff)
	assert.NoError(t, again.Validate())
}

func TestConfigValidate(t *testing.T) {
	for _, tc := range []struct {
		want   string
		change func(*scrape.Config)
	}{
		{"scrape: Config.Targets = nil is required", func(c *scrape.Config) { c.Targets = nil }},
		{"scrape: Config.Sink = nil is required", func(c *scrape.Config) { c.Sink = nil }},
		{"scrape: Config.Every = -1s is below 1ms", func(c *scrape.Config) { c.Every = -time.Second }},
		{"scrape: Config.Every = 1µs is below 1ms", func(c *scrape.Config) { c.Every = time.Microsecond }},
		{"scrape: Config.Every = 25h0m0s is above 24h0m0s", func(c *scrape.Config) { c.Every = 25 * time.Hour; c.MaxBackoff = -1 }},
		{"scrape: Config.Timeout = -1ns is negative", func(c *scrape.Config) { c.Timeout = -1 }},
		{"scrape: Config.Timeout = 2562047h47m16.854775807s is above 24h0m0s", func(c *scrape.Config) { c.Timeout = math.MaxInt64 }},
		{"scrape: Config.MaxBackoff = 100ms is below Every = 500ms", func(c *scrape.Config) { c.MaxBackoff = 100 * time.Millisecond }},
		{"scrape: Config.MaxBackoff = 48h0m0s is above 24h0m0s", func(c *scrape.Config) { c.MaxBackoff = 48 * time.Hour }},
		{"scrape: Config.Jitter = 0.6 is not a share up to 0.5", func(c *scrape.Config) { c.Jitter = 0.6 }},
		{"scrape: Config.Jitter = NaN is not a share up to 0.5", func(c *scrape.Config) { c.Jitter = math.NaN() }},
		{"scrape: Config.MaxConcurrent = -1 is negative", func(c *scrape.Config) { c.MaxConcurrent = -1 }},
		{"scrape: Config.MaxBytes = -1 is negative", func(c *scrape.Config) { c.MaxBytes = -1 }},
		{"scrape: Config.MaxRedirects = 11 is above 10", func(c *scrape.Config) { c.MaxRedirects = 11 }},
	} {
		c := required()
		tc.change(&c)
		assert.EqualError(t, c.Validate(), tc.want)
		p, err := scrape.New(c)
		assert.EqualError(t, err, tc.want)
		assert.Nil(t, p)
	}
	err := scrape.Config{Every: -1, MaxBytes: -1}.Validate()
	for _, part := range []string{"Targets", "Sink", "Every", "MaxBytes"} {
		assert.ErrorContains(t, err, "scrape: Config."+part, "all faults are joined")
	}
}
