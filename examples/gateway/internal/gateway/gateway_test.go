package gateway_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/isobar-go/isobar/examples/gateway/internal/gateway"
	"github.com/isobar-go/isobar/router"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestErrorEvents(t *testing.T) {
	broken := errors.New("connection reset")
	const event = `data: {"error":{"message":"The engine that served the request failed.","type":"server_error","param":null,"code":"upstream_failed"}}` + "\n\n"
	for _, c := range []struct {
		name, body string
		err        error
		want       string
	}{
		{"a good end", "data: x\n\n", io.EOF, "data: x\n\n"},
		{"between events", "data: x\n\n", broken, "data: x\n\n" + event},
		{"within an event", "data: {\"a", broken, "data: {\"a\n\n" + event},
		{"behind a line", "data: x\n", broken, "data: x\n\n\n" + event},
		{"before the first", "", broken, event},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, wrap := range []func(io.Reader) io.Reader{
				func(r io.Reader) io.Reader { return r }, iotest.OneByteReader, iotest.DataErrReader,
			} {
				inner := io.NopCloser(wrap(io.MultiReader(strings.NewReader(c.body), iotest.ErrReader(c.err))))
				for _, outer := range []func(io.Reader) io.Reader{func(r io.Reader) io.Reader { return r }, iotest.OneByteReader} {
					got, err := io.ReadAll(outer(gateway.ErrorEvents(t.Context(), inner)))
					require.NoError(t, err)
					require.Equal(t, c.want, string(got))
					inner = io.NopCloser(wrap(io.MultiReader(strings.NewReader(c.body), iotest.ErrReader(c.err))))
				}
			}
		})
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := io.ReadAll(gateway.ErrorEvents(gone, io.NopCloser(iotest.ErrReader(broken))))
	require.ErrorIs(t, err, broken, "nobody listens any more")
}

func TestFromHere(t *testing.T) {
	for _, c := range []struct {
		peer, host, header string
		want               bool
	}{
		{"127.0.0.1:5", "127.0.0.1:8080", "", true},
		{"127.9.9.9:5", "localhost", "", true},
		{"[::1]:5", "[::1]:8080", "", true},
		{"[::ffff:127.0.0.1]:5", "localhost:1", "", true},
		{"192.0.2.1:5", "127.0.0.1", "", false},
		{"127.0.0.1:5", "gateway.example", "", false},
		{"127.0.0.1:5", "192.0.2.7:80", "", false},
		{"127.0.0.1:5", "localhost", "X-Forwarded-For", false},
		{"127.0.0.1:5", "localhost", "Forwarded", false},
		{"nonsense", "localhost", "", false},
		{"127.0.0.1:5", "", "", false},
	} {
		r := httptest.NewRequest(http.MethodGet, "/debug/isobar", nil)
		r.RemoteAddr, r.Host = c.peer, c.host
		if c.header != "" {
			r.Header.Set(c.header, "x")
		}
		require.Equal(t, c.want, gateway.FromHere(r), "%+v", c)
		r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/1.0", 1, 0
		require.False(t, gateway.FromHere(r), "as old proxies say it that add no header")
	}
}

func TestHarmless(t *testing.T) {
	for id, want := range map[string]bool{
		"": false, "abc-123_X.y:z": true, "a b": false, "a\n": false, "ä": false, strings.Repeat("a", 128): true, strings.Repeat("a", 129): false,
	} {
		require.Equal(t, want, gateway.Harmless(id), "%q", id)
	}
}

func TestRing(t *testing.T) {
	ring := gateway.NewRing(3)
	require.Empty(t, ring.Newest())
	all := gateway.Observers{ring, gateway.NewRing(0)}
	all.Decided(receipt("later", 9))
	all.Decided(receipt("granted", 8))
	require.Empty(t, ring.Newest(), "a granted request is one of these when it ends")
	require.Equal(t, []*router.Receipt{receipt("granted", 8), receipt("later", 9)}, ring.Open())
	all.Decided(&router.Receipt{RequestID: "0", Rejected: "saturated"})
	for i := 1; i < 5; i++ {
		all.Ended(&router.Receipt{RequestID: strconv.Itoa(i)})
		var ids []string
		for _, r := range ring.Newest() {
			ids = append(ids, r.RequestID)
		}
		want := []string{"4", "3", "2", "1", "0"}[4-i:]
		require.Equal(t, want[:min(3, len(want))], ids)
	}
	require.Len(t, ring.Open(), 2)
	all.Ended(receipt("later", 9))
	require.Equal(t, []*router.Receipt{receipt("granted", 8)}, ring.Open())
	require.Equal(t, "later", ring.Newest()[0].RequestID)
	for i := range uint64(gateway.MaxOpen + 10) {
		all.Decided(receipt("x", 100+i))
	}
	require.Len(t, ring.Open(), gateway.MaxOpen)
}

func receipt(id string, number uint64) *router.Receipt {
	return &router.Receipt{RequestID: id, Decision: router.Decision{Number: number}}
}

func TestConfig(t *testing.T) {
	_, err := gateway.New(gateway.Config{MaxBody: -1, BodyTimeout: -1, StallTimeout: -1, HeaderTimeout: -1, Grace: -1})
	for _, name := range []string{"Pool", "MaxBody", "BodyTimeout", "StallTimeout", "HeaderTimeout", "Grace"} {
		require.ErrorContains(t, err, "gateway: Config."+name)
	}
}

func TestFetchModels(t *testing.T) {
	answer := `{"object":"list","data":[{"id":"a","x":1},{"id":"b"},{"nothing":1},5]}`
	status := 200
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, answer)
	}))
	defer s.Close()
	defer s.Client().CloseIdleConnections()
	models, err := gateway.FetchModels(t.Context(), s.Client(), s.URL+"/")
	require.NoError(t, err)
	require.Len(t, models, 2)
	require.JSONEq(t, `{"id":"a","x":1}`, string(models["a"]))
	answer = "no JSON"
	_, err = gateway.FetchModels(t.Context(), s.Client(), s.URL)
	require.Error(t, err)
	status = 500
	_, err = gateway.FetchModels(t.Context(), s.Client(), s.URL)
	require.ErrorContains(t, err, "status 500")
	for _, base := range []string{"http://[", "http://secret:secret@127.0.0.1:0/?key=secret", "http://secret@[/"} {
		_, err = gateway.FetchModels(t.Context(), s.Client(), base)
		require.Error(t, err)
		require.NotContains(t, err.Error(), "secret")
	}
}
