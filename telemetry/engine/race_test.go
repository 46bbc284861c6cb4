package engine_test

import (
	"bytes"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"

	"github.com/isobar-go/isobar/telemetry/engine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestConcurrentUse reads with one Parser from many goroutines; it is of use under the race detector.
func TestConcurrentUse(t *testing.T) {
	p := engine.Parser{Kind: engine.SGLang, Model: "org/model", Labels: map[string]string{"dp_rank": "1"}}
	body := payload(t, "sglang-dp2.prom")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				s, err := p.Parse(bytes.NewReader(body), sent)
				assert.NoError(t, err)
				assert.Equal(t, "run=9 wait=3 used=80000 size=100000 kv=0.8 rate=310 hits=0.75", whole(s))
				kind, err := engine.Detect(body)
				assert.NoError(t, err)
				assert.Equal(t, engine.SGLang, kind)
				assert.NotEmpty(t, engine.Signals(kind))
				_, err = engine.ParseLoadHeader("TEXT num_requests_waiting=1", sent)
				assert.NoError(t, err)
			}
		})
	}
	wg.Wait()
}
