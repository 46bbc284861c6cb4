package httptransport_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/router/httptransport"
)

func TestTimeoutHeader(t *testing.T) {
	now := time.Unix(1000, 0)
	o := httptransport.OpenAI{TimeoutHeader: "X-Timeout", Now: func() time.Time { return now }}
	for text, want := range map[string]time.Duration{
		"30": 30 * time.Second, "2.5": 2500 * time.Millisecond, "0.001": time.Millisecond, "86400": 24 * time.Hour,
	} {
		require.Equal(t, now.Add(want), describe(t, o, `{}`, "X-Timeout", text).Deadline, text)
	}
	require.Zero(t, describe(t, o, `{}`).Deadline)
	require.Zero(t, describe(t, httptransport.OpenAI{}, `{}`, "X-Timeout", "30").Deadline, "nobody has named it")
	for _, text := range []string{"0", "-1", "NaN", "Inf", "1e300", "86401", "30s", "soon", " "} {
		_, err := o.Describe(post(t, `{}`, "X-Timeout", text))
		var bad *httptransport.RequestError
		require.ErrorAs(t, err, &bad, text)
		require.Equal(t, "X-Timeout", bad.Param)
		require.Contains(t, bad.Message, "number of seconds")
	}
	o.Now = nil
	before := time.Now()
	got := describe(t, o, `{}`, "X-Timeout", "10").Deadline
	require.WithinRange(t, got, before.Add(10*time.Second), time.Now().Add(10*time.Second))
}

// TestTimeoutWhileWaiting: a request that waits is refused when its time is over, and a refusal comes before anything is sent.
func TestTimeoutWhileWaiting(t *testing.T) {
	sent := make(chan struct{}, 8)
	s := server(t, func(w http.ResponseWriter, r *http.Request) { sent <- struct{}{} })
	p := pool(t, router.Config{Caps: admission.Caps{Aggregate: 1}, Queue: router.Queue{Max: 4}}, s.URL)
	held, err := p.Reserve(t.Context(), router.Request{})
	require.NoError(t, err)
	tr := transport(t, p)
	tr.Describe = httptransport.OpenAI{TimeoutHeader: "X-Timeout"}.Describe
	begin := time.Now()
	_, err = tr.RoundTrip(post(t, `{"max_tokens":1}`, "X-Timeout", "0.2"))
	require.ErrorIs(t, err, router.ErrDeadline)
	require.Less(t, time.Since(begin), 5*time.Second)
	status, _ := httptransport.ErrorBody(err)
	require.Equal(t, http.StatusGatewayTimeout, status)
	require.Empty(t, sent)
	held.Cancel()
	resp, err := tr.RoundTrip(post(t, `{"max_tokens":1}`, "X-Timeout", "20"))
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Len(t, sent, 1)
	require.Zero(t, p.Stats().Queue.Waiting)
}
