package calibrate_test

import (
	"bytes"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/score/calibrate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var _ router.Observer = (*calibrate.Calibrator)(nil)

func TestManyGoroutines(t *testing.T) {
	l := lab{truth: named(t, "h100-8b"), believed: named(t, "h100-8b"), noise: 0.1}
	receipts := l.receipts(400, 1)
	c := &calibrate.Calibrator{Keep: 1000}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for _, r := range receipts {
				c.Decided(r)
				c.Ended(r)
			}
		})
	}
	all.Go(func() {
		for range 5 {
			r, err := c.Fit(calibrate.Options{Splits: 1})
			if err != nil || r.Used > 1000 {
				t.Errorf("%d used, %v", r.Used, err)
			}
		}
	})
	all.Wait()
	r := fit(t, c, calibrate.Options{})
	require.Equal(t, 1600, r.Receipts)
	require.Equal(t, 1000, r.Used)
}

func BenchmarkAdd(b *testing.B) {
	l := lab{truth: named(b, "h100-8b"), believed: named(b, "h100-8b"), noise: 0.1}
	receipts := l.receipts(1000, 1)
	c := &calibrate.Calibrator{Keep: 1000}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		c.Add(receipts[i%1000])
	}
}

// 100,000 receipts of eight endpoints.
func BenchmarkFit(b *testing.B) {
	var c calibrate.Calibrator
	for _, id := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		l := lab{truth: named(b, "h100-8b"), believed: scaled(named(b, "h100-8b"), 2), noise: 0.1, endpoint: id}
		for _, r := range l.receipts(12_500, 1) {
			c.Add(r)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		fit(b, &c, calibrate.Options{})
	}
}

func BenchmarkReader(b *testing.B) {
	l := lab{truth: named(b, "h100-8b"), believed: named(b, "h100-8b"), noise: 0.1}
	text := file(b, l.receipts(1000, 1))
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		var c calibrate.Calibrator
		if n, err := c.AddLines(bytes.NewReader(text)); n != 1000 || err != nil {
			b.Fatal(n, err)
		}
	}
}
