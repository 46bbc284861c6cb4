package router_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/router"
)

// finished is a context that is done, with which a writer writes what is in its buffer and returns.
func finished() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// A receipt with a figure that JSON has no word for is lost alone: the next ones are written.
func TestAReceiptThatCannotBeEncodedDoesNotEndTheLog(t *testing.T) {
	var out bytes.Buffer
	j := router.NewJSONLines(&out, 0)
	for i, total := range []float64{1, math.NaN(), 3, math.Inf(1), 5} {
		j.Ended(&router.Receipt{RequestID: string("abcde"[i]), Decision: router.Decision{RunnerUpTotal: total}})
	}
	require.NoError(t, j.Run(finished()))
	require.EqualValues(t, 3, j.Written())
	require.EqualValues(t, 2, j.Dropped())
	ids := ""
	for line := range strings.Lines(out.String()) {
		var r router.Receipt
		require.NoError(t, json.Unmarshal([]byte(line), &r), line)
		ids += r.RequestID
	}
	require.Equal(t, "ace", ids)
}

// Both writers write a lease at its end; with Open at the decision too, so that one that never ends can be found. Rejections are
// written once either way.
func TestOpenWritesWhatHasNotEnded(t *testing.T) {
	for _, open := range []bool{false, true} {
		var out, logged bytes.Buffer
		j := router.NewJSONLines(&out, 0)
		s := router.NewSlogObserver(slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug})), 0)
		j.Open, s.Open = open, open
		p := newPool(t, newClock(), router.Config{Receipts: router.Receipts{Observer: tee{j, s}}}, "a")
		mustReserve(t, p, router.Request{ID: "ended"}).Done(router.Usage{})
		mustReserve(t, p, router.Request{ID: "forgotten"})
		rejected(t, p, router.Request{ID: "no", Exclude: []string{"a"}, ExcludeHard: true}, router.ErrNoEndpoints)
		require.NoError(t, j.Run(finished()))
		require.NoError(t, s.Run(finished()))

		want := []string{"ended done", "no"}
		if open {
			want = []string{"ended", "ended done", "forgotten", "no"}
		}
		var got []string
		for line := range strings.Lines(out.String()) {
			var r router.Receipt
			require.NoError(t, json.Unmarshal([]byte(line), &r))
			id := r.RequestID
			if r.Outcome != nil {
				id += " done"
			}
			got = append(got, id)
		}
		require.Equal(t, want, got)
		var told []string
		for line := range strings.Lines(logged.String()) {
			_, rest, _ := strings.Cut(line, "request_id=")
			id, _, _ := strings.Cut(rest, " ")
			if strings.Contains(line, "cause=completed") {
				id += " done"
			}
			told = append(told, id)
		}
		require.Equal(t, want, told)
	}
}

func TestAJSONLinesWithoutAWriterSaysSo(t *testing.T) {
	require.EqualError(t, router.NewJSONLines(nil, 0).Run(finished()), "router: JSONLines has no writer")
}
