package scrape_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"testing"
	"testing/iotest"
	"time"

	"pgregory.net/rapid"

	"github.com/isobar-go/isobar/telemetry"
	"github.com/isobar-go/isobar/telemetry/scrape"
)

// The bounded reader against the plain rule: all of a body that fits, and of another exactly as much as fits.
func TestLimited(t *testing.T) {
	broke := errors.New("broke")
	rapid.Check(t, func(t *rapid.T) {
		data := rapid.SliceOfN(rapid.Byte(), 0, 60).Draw(t, "data")
		most := rapid.Int64Range(1, 50).Draw(t, "most")
		var r io.Reader = bytes.NewReader(data)
		breaks := rapid.Bool().Draw(t, "breaks")
		if breaks {
			r = breaking{r, broke}
		}
		switch rapid.IntRange(0, 3).Draw(t, "manner") {
		case 1:
			r = iotest.OneByteReader(r)
		case 2:
			r = iotest.DataErrReader(r)
		case 3:
			r = iotest.HalfReader(r)
		}
		wantErr := error(nil)
		want := data
		switch {
		case int64(len(data)) > most:
			want, wantErr = data[:most], scrape.ErrTooLarge
		case breaks:
			wantErr = broke
		}
		l := scrape.Limited(r, most)
		var got []byte
		var err error
		for err == nil {
			p := make([]byte, rapid.IntRange(0, 20).Draw(t, "buffer"))
			var n int
			n, err = l.Read(p)
			got = append(got, p[:n]...)
		}
		if _, again := l.Read(make([]byte, 1)); !errors.Is(again, err) {
			t.Fatalf("it went on: %v, then %v", err, again)
		}
		if err == io.EOF {
			err = nil
		}
		if !bytes.Equal(got, want) || !errors.Is(err, wantErr) {
			t.Fatalf("got %q, %v; want %q, %v", got, err, want, wantErr)
		}
	})
}

// Whatever an engine sends, a poll ends as a success that a plain reading agrees with, or as a failure.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte("7"), false)
	f.Add([]byte(zipped("7")), true)
	f.Add([]byte(zipped("7")[:15]), true)
	f.Add([]byte(zipped("7")+zipped("8")), true)
	f.Fuzz(func(t *testing.T, data []byte, compressed bool) {
		const limit = 64
		sink := make(chan told, 1)
		header := []string{}
		if compressed {
			header = []string{"Content-Encoding", "gzip"}
		}
		cfg := scrape.Config{
			Targets: newFleet("a").targets, Sink: one(sink), Every: time.Hour, Jitter: scrape.None, MaxBytes: limit, Timeout: time.Hour,
			Client: transport(func(req *http.Request) (*http.Response, error) {
				return body(req, iotest.HalfReader(bytes.NewReader(data)), header...), nil
			}).client(),
			Parse: func(r io.Reader, at time.Time) (telemetry.Snapshot, error) {
				text, err := io.ReadAll(r)
				return telemetry.Snapshot{Running: telemetry.V(float64(len(text)))}, err
			},
		}
		p, err := scrape.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stopped := make(chan error)
		go func() { stopped <- p.Run(ctx) }()
		got := <-sink
		cancel()
		if err := <-stopped; err != nil {
			t.Fatal(err)
		}

		want, sound := data, len(data) <= limit
		if compressed && sound {
			z, err := gzip.NewReader(bytes.NewReader(data))
			if err == nil {
				want, err = io.ReadAll(io.LimitReader(z, limit+1))
			}
			sound = err == nil && len(want) <= limit
		}
		if sound != (got.err == nil) {
			t.Fatalf("sound %v, got %v", sound, got.err)
		}
		if sound && int(got.running()) != len(want) {
			t.Fatalf("%v bytes, want %d", got.running(), len(want))
		}
	})
}

// one is a sink that passes on the first call.
type one chan told

func (c one) Observe(id string, s telemetry.Snapshot) error {
	select {
	case c <- told{id: id, snapshot: s}:
	default:
	}
	return nil
}

func (c one) ScrapeFailed(id string, cause error) error {
	select {
	case c <- told{id: id, err: cause}:
	default:
	}
	return nil
}
