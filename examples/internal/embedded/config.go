package embedded

import (
	"errors"
	"fmt"
	"math"

	"github.com/isobar-go/isobar/internal/sim"
)

// Config says what Start starts. The zero value is a usable engine. It is a plain value.
type Config struct {
	// Name tells engines apart in response headers (X-Engine-Name) and ids. Default "engine".
	Name string
	// Model is the only model served. Default "demo".
	Model string
	// Profile is the speed and the memory of the engine. Default: the profile h100-8b.
	Profile sim.Profile
	// Dialect is the engine in whose names the state is reported, see Dialects. Default "vllm".
	Dialect string
	// TimeScale is how much faster than real time the engine runs: 1 is real time, 10 makes a pass of 20 ms last 2 ms.
	// Default 1. Above about 1000 the host's timers and CPU set the pace.
	TimeScale float64
	// Addr is the TCP address to listen on. Default "127.0.0.1:0", a free port on loopback.
	Addr string
	// OutputTokens is the length at which an answer ends by itself. Default 128.
	OutputTokens int64
	// MaxModelLen is the most tokens prompt and answer may have together. Default: the KV cache, at most 131,072. Never
	// more than the KV cache.
	MaxModelLen int64
	// KVEvents publishes over ZeroMQ which blocks the prefix cache has taken in and given up, in vLLM's form. Only with a
	// Dialect that HasKVEvents. Default off.
	KVEvents bool
	// KVAddr and KVReplayAddr are the TCP addresses of the PUB socket and of the ROUTER socket that sends batches again. Default
	// "127.0.0.1:0", free ports on loopback. The sockets have neither authentication nor encryption, nor a bound on what a peer may send.
	KVAddr, KVReplayAddr string
}

// withDefaults fills what is zero.
func (c Config) withDefaults() Config {
	if c.Name == "" {
		c.Name = "engine"
	}
	if c.Model == "" {
		c.Model = "demo"
	}
	if c.Profile == (sim.Profile{}) {
		c.Profile, _ = sim.ProfileByName("h100-8b")
	}
	if c.Dialect == "" {
		c.Dialect = dialects[0].name
	}
	if c.TimeScale == 0 {
		c.TimeScale = 1
	}
	if c.Addr == "" {
		c.Addr = "127.0.0.1:0"
	}
	if c.KVAddr == "" {
		c.KVAddr = "127.0.0.1:0"
	}
	if c.KVReplayAddr == "" {
		c.KVReplayAddr = "127.0.0.1:0"
	}
	if c.OutputTokens == 0 {
		c.OutputTokens = 128
	}
	if c.MaxModelLen == 0 {
		c.MaxModelLen = min(131_072, c.kvTokens())
	}
	return c
}

func (c Config) kvTokens() int64 { return c.Profile.Blocks() * c.Profile.BlockSize }

// Validate returns every fault of the configuration, joined, or nil. Zero fields count as their defaults.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	if err := c.Profile.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("embedded: Config.Profile: %w", err))
	}
	if c.dialect() == nil {
		errs = append(errs, fmt.Errorf("embedded: Config.Dialect %q is none of %v", c.Dialect, Dialects()))
	}
	if c.KVEvents && c.dialect() != nil && !c.dialect().events {
		errs = append(errs, fmt.Errorf("embedded: Config.KVEvents is on, and engines of the dialect %q publish none", c.Dialect))
	}
	if !(c.TimeScale > 0) || math.IsInf(c.TimeScale, 0) {
		errs = append(errs, fmt.Errorf("embedded: Config.TimeScale %v is not a positive number", c.TimeScale))
	}
	if c.OutputTokens < 1 {
		errs = append(errs, fmt.Errorf("embedded: Config.OutputTokens %d is below 1", c.OutputTokens))
	}
	if most := c.kvTokens(); c.MaxModelLen < 2 || c.MaxModelLen > most {
		errs = append(errs, fmt.Errorf("embedded: Config.MaxModelLen %d is not within 2 and the KV cache's %d", c.MaxModelLen, most))
	}
	return errors.Join(errs...)
}
