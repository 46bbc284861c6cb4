//go:build unix && !race

package scrape_test

import (
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/telemetry"
	"github.com/isobar-go/isobar/telemetry/scrape"
)

// silent is a sink that does nothing.
type silent struct{}

func (silent) Observe(string, telemetry.Snapshot) error { return nil }
func (silent) ScrapeFailed(string, error) error         { return nil }

func processorTime(t *testing.T) time.Duration {
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// 512 endpoints, each polled once in a second of fake time: the processor time of the whole process, parsing included, is
// the share of one core that a real second would take, but for the network.
func TestProcessorShare(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes a second or two")
	}
	const rounds = 8
	list, text := fleetOf(512), document()
	compressed := zipped(text)
	require.InDelta(t, 100, strings.Count(text, "\n"), 20)
	for _, encoding := range []string{"", "gzip"} {
		bubble(t, func() scrape.Config {
			return scrape.Config{
				Targets: func() []scrape.Target { return list }, Sink: silent{}, Every: time.Second,
				Client: transport(func(req *http.Request) (*http.Response, error) {
					resp, err := after(req, 2*time.Millisecond, 200, text)
					if err == nil && encoding != "" {
						resp.Header.Set("Content-Encoding", encoding)
						resp.Body = io.NopCloser(strings.NewReader(compressed))
					}
					return resp, err
				}).client(),
			}
		}, func(t *testing.T, p *scrape.Poller) {
			time.Sleep(3 * time.Second)
			before, polls := processorTime(t), p.Stats().Polls
			time.Sleep(rounds * time.Second)
			took := processorTime(t) - before
			s := p.Stats()
			require.Zero(t, s.Failures)
			assert.InDelta(t, 512*rounds, s.Polls-polls, 512)
			share := took.Seconds() / rounds
			t.Logf("encoding %q: %.1f %% of one core, %v per poll", encoding, 100*share, took/time.Duration(s.Polls-polls))
			assert.Less(t, share, 1.0, "of one core")
		})
	}
}
