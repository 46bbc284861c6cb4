package admission_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/admission"
)

// plotted is a class of the plots: what one request of it takes.
type plotted struct {
	name    string
	cost    int64
	service float64 // seconds
	patient float64 // seconds in which it must start; 0: any time
	reserve float64
}

var plottedClasses = []plotted{
	{"interactive", 100, 1, 5, 0.25},
	{"standard", 200, 2, 0, 0.25},
	{"batch", 1000, 4, 0, 0},
}

// Each row of a plot is one second. A line of the input says from when on how many requests of each class arrive in a
// second; the arguments are the queue's configuration and the number of slots, each of which serves one request.
func TestQueuePlots(t *testing.T) {
	datadriven.Walk(t, "testdata/queue", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			require.Equal(t, "plot", d.Cmd)
			var slots, seconds, shares int
			cfg := admission.QueueConfig{Classes: len(plottedClasses)}
			var timeout, ageAfter int
			d.ScanArgs(t, "slots", &slots)
			d.ScanArgs(t, "seconds", &seconds)
			d.ScanArgs(t, "shares", &shares)
			d.ScanArgs(t, "max", &cfg.Max)
			d.ScanArgs(t, "timeout", &timeout)
			d.ScanArgs(t, "age-after", &ageAfter)
			d.ScanArgs(t, "aged-every", &cfg.AgedEvery)
			cfg.Timeout, cfg.AgeAfter = time.Duration(timeout)*time.Second, time.Duration(ageAfter)*time.Second
			return plotQueue(t, cfg, slots, seconds, shares > 0, parseLoad(t, d.Input))
		})
	})
}

func parseLoad(t *testing.T, input string) map[int][]float64 {
	load := map[int][]float64{}
	for line := range strings.Lines(input) {
		fields := strings.Fields(line)
		second, err := strconv.Atoi(fields[0])
		require.NoError(t, err)
		for _, f := range fields[1:] {
			rate, err := strconv.ParseFloat(f, 64)
			require.NoError(t, err)
			load[second] = append(load[second], rate)
		}
		require.Len(t, load[second], len(plottedClasses), line)
	}
	return load
}

func plotQueue(t *testing.T, cfg admission.QueueConfig, slots, seconds int, reserve bool, load map[int][]float64) string {
	const ticks = 20 // in a second
	const tick = int64(time.Second) / ticks
	type running struct {
		rank int
		end  int64
	}
	q := newQueue(t, cfg)
	var scfg admission.SharesConfig
	if reserve {
		for rank, c := range plottedClasses {
			scfg.Reserve[rank] = c.reserve
		}
	}
	shares := newShares(t, scfg)
	capacity := amount{Requests: slots}
	n := len(plottedClasses)
	type tally struct{ offered, granted, refused, timedOut, late int }
	sums, row := make([]tally, n), make([]tally, n)
	var busy []running
	due, rates := make([]float64, n), make([]float64, n)
	longest := make([]time.Duration, n)

	var out strings.Builder
	fmt.Fprintf(&out, "  s  served a second   refused  |waiting: i, s, b\n")
	for i := range seconds * ticks {
		now := int64(i) * tick
		if r, ok := load[i/ticks]; ok && i%ticks == 0 {
			rates = r
		}
		for j := 0; j < len(busy); j++ {
			if b := busy[j]; b.end <= now {
				require.NoError(t, shares.Give(b.rank, plottedClasses[b.rank].cost, now))
				busy = append(busy[:j], busy[j+1:]...)
				j--
			}
		}
		for w, cause := q.Expired(now); w != nil; w, cause = q.Expired(now) {
			if cause == admission.TimedOut {
				row[w.Ask().Rank].timedOut++
			} else {
				row[w.Ask().Rank].late++
			}
		}
		for rank, c := range plottedClasses {
			for due[rank] += rates[rank] / ticks; due[rank] >= 1; due[rank]-- {
				row[rank].offered++
				ask := admission.Ask{Rank: rank, Group: uint64(rank), Cost: c.cost}
				if c.patient > 0 {
					ask.Latest = now + int64(c.patient*float64(time.Second))
				}
				displaced, err := q.Push(&waiter{Value: c.name}, ask, now)
				if err != nil {
					require.ErrorIs(t, err, admission.ErrFull)
					row[rank].refused++
				}
				for _, w := range displaced {
					row[w.Ask().Rank].refused++
				}
			}
		}
		for rank := range n {
			c := q.Class(rank, now)
			require.NoError(t, shares.SetWaiting(rank, amount{c.Waiters, c.Tokens}, now))
		}
		q.Begin(now)
		for w := q.Next(); w != nil && len(busy) < slots; w = q.Next() {
			ask := w.Ask()
			if !shares.Admits(ask.Rank, ask.Cost, capacity, now) {
				q.SkipGroup(ask.Group)
				continue
			}
			q.Granted(w, now)
			require.NoError(t, shares.Take(ask.Rank, ask.Cost, now))
			busy = append(busy, running{ask.Rank, now + int64(plottedClasses[ask.Rank].service*float64(time.Second))})
			row[ask.Rank].granted++
			longest[ask.Rank] = max(longest[ask.Rank], time.Duration(now-w.Enqueued()))
		}
		require.NoError(t, q.Check())
		if i%ticks < ticks-1 {
			continue
		}
		refused, bar := 0, ""
		for rank := range n {
			refused += row[rank].refused + row[rank].timedOut + row[rank].late
			bar += strings.Repeat(plottedClasses[rank].name[:1], q.Class(rank, now).Waiters)
			sums[rank].offered += row[rank].offered
			sums[rank].granted += row[rank].granted
			sums[rank].refused += row[rank].refused
			sums[rank].timedOut += row[rank].timedOut
			sums[rank].late += row[rank].late
		}
		fmt.Fprintf(&out, "%3d  i%2d  s%2d  b%2d  %9s  |%s\n",
			i/ticks, row[0].granted, row[1].granted, row[2].granted, strings.Repeat("x", refused), bar)
		clear(row)
	}
	for rank, c := range plottedClasses {
		s := sums[rank]
		fmt.Fprintf(&out, "%-11s %3d offered, %3d granted, %3d refused or displaced, %2d timed out, %2d too late, %2d wait; "+
			"longest wait of the granted %v\n",
			c.name, s.offered, s.granted, s.refused, s.timedOut, s.late, q.Class(rank, 0).Waiters, longest[rank])
		require.Equal(t, s.offered, s.granted+s.refused+s.timedOut+s.late+q.Class(rank, 0).Waiters, "conservation")
	}
	return out.String()
}
