package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/router/httptransport"
	"github.com/isobar-go/isobar/telemetry/engine"
	"github.com/isobar-go/isobar/telemetry/scrape"
)

const (
	modelsTimeout = 2 * time.Second
	maxModels     = 1 << 20 // bytes of an engine's answer
)

// Get asks an engine for a page. Its error names no credentials of the address.
func Get(ctx context.Context, client *http.Client, base, path string) (*http.Response, error) {
	if err := httptransport.ValidateAddress(base); err != nil {
		return nil, err
	}
	u, _ := url.Parse(base) // what is valid can be parsed
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.JoinPath(path).String(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	var own *url.Error // quotes the address
	if errors.As(err, &own) {
		err = own.Err
	}
	return resp, err
}

// FetchModels asks one engine what it serves: the entries of its /v1/models, by their id, as it words them.
func FetchModels(ctx context.Context, client *http.Client, base string) (map[string]json.RawMessage, error) {
	shown := httptransport.RedactAddress(base)
	resp, err := Get(ctx, client, base, "/v1/models")
	if err != nil {
		return nil, fmt.Errorf("gateway: models of %s: %w", shown, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("gateway: models of %s: status %d", shown, resp.StatusCode)
	}
	var list struct {
		Data []json.RawMessage `json:"data"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxModels)).Decode(&list); err != nil {
		return nil, fmt.Errorf("gateway: models of %s: %w", shown, err)
	}
	out := make(map[string]json.RawMessage, len(list.Data))
	for _, raw := range list.Data {
		var entry struct {
			ID string `json:"id"`
		}
		if json.Unmarshal(raw, &entry) == nil && entry.ID != "" {
			out[entry.ID] = raw
		}
	}
	return out, nil
}

// models answers with the union of what the engines serve; of those that do not answer, what is known from before.
func (g *Gateway) models(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), modelsTimeout)
	defer cancel()
	client := &http.Client{Transport: g.base}
	endpoints := g.cfg.Pool.Endpoints()
	found := make([]map[string]json.RawMessage, len(endpoints))
	var all sync.WaitGroup
	for i, e := range endpoints {
		all.Go(func() {
			models, err := FetchModels(ctx, client, e.Address)
			if err != nil {
				models = make(map[string]json.RawMessage, len(e.Models))
				for _, id := range e.Models {
					raw, _ := json.Marshal(map[string]string{"id": id, "object": "model"}) // strings always marshal
					models[id] = raw
				}
			}
			found[i] = models
		})
	}
	all.Wait()
	union := map[string]json.RawMessage{}
	for _, models := range found {
		for id, raw := range models {
			if _, ok := union[id]; !ok {
				union[id] = raw
			}
		}
	}
	if len(union) == 0 {
		httptransport.WriteError(w, &router.RejectError{Reason: router.ErrNoEndpoints})
		return
	}
	type entry struct {
		id  string
		raw json.RawMessage
	}
	entries := make([]entry, 0, len(union))
	for id, raw := range union {
		entries = append(entries, entry{id, raw})
	}
	slices.SortFunc(entries, func(a, b entry) int { return cmp.Compare(a.id, b.id) })
	data := make([]json.RawMessage, 0, len(entries))
	for _, e := range entries {
		data = append(data, e.raw)
	}
	writeJSON(w, map[string]any{"object": "list", "data": data})
}

// debug shows the pool's state. It names no tenant and holds no prompt, but tells how busy the engines are: not a page for
// strangers.
func (g *Gateway) debug(w http.ResponseWriter, r *http.Request) {
	if !g.cfg.DebugAny && !fromHere(r) {
		httptransport.WriteError(w, &httptransport.RequestError{
			Status: http.StatusForbidden, Code: "forbidden", Message: "this page is for the gateway's own machine",
		})
		return
	}
	query := r.URL.Query()
	open, ended := g.cfg.Receipts.Open(), g.cfg.Receipts.Newest()
	most := debugReceipts
	if id := query.Get("id"); id != "" {
		other := func(r *router.Receipt) bool { return r.RequestID != id }
		open, ended = slices.DeleteFunc(open, other), slices.DeleteFunc(ended, other)
		if most = len(open) + len(ended); most == 0 {
			httptransport.WriteError(w, &httptransport.RequestError{
				Status: http.StatusNotFound, Param: "id", Code: "unknown_request", Message: fmt.Sprintf("no receipt of a request %.128q is kept", id),
			})
			return
		}
	}
	if text := query.Get("n"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			httptransport.WriteError(w, &httptransport.RequestError{
				Param: "n", Message: fmt.Sprintf("n = %.20q must be a number of receipts, 0 or more", text),
			})
			return
		}
		most = n
	}
	open, ended = open[:min(most, len(open))], ended[:min(most, len(ended))]
	page := debugPage{
		Policy: g.cfg.Pool.Config().Policy.Name(), Admission: g.admission(), Stats: g.cfg.Pool.Stats(), Endpoints: g.cfg.Pool.Endpoints(),
		Open: open, Receipts: ended,
	}
	for i := range page.Endpoints {
		page.Endpoints[i].Address = httptransport.RedactAddress(page.Endpoints[i].Address)
	}
	if g.cfg.Polls != nil {
		page.Polls = pollRows(g.cfg.Polls())
	}
	if g.cfg.KV != nil {
		page.KV = g.cfg.KV()
	}
	if query.Get("id") != "" {
		for _, receipt := range slices.Concat(open, ended) {
			page.Explain = append(page.Explain, strings.Split(strings.TrimSpace(receipt.Explain()), "\n")...)
		}
	}
	writeJSON(w, page)
}

// debugReceipts is the number of receipts of each kind on the debug page where the query does not say.
const debugReceipts = 20

// debugPage is the document of the debug page. It belongs to the goroutine that makes it.
type debugPage struct {
	Policy    string            `json:"policy"`
	Admission admissionPage     `json:"admission"`
	Explain   []string          `json:"explain,omitempty"` // lines
	Open      []*router.Receipt `json:"open"`
	Receipts  []*router.Receipt `json:"receipts"`
	Stats     router.Stats      `json:"stats"`
	Endpoints []router.Endpoint `json:"endpoints"`
	Polls     []pollRow         `json:"polls"`
	KV        []KVState         `json:"kv_events"`
}

// pollRow is how the polls of one endpoint go. It is a plain value.
type pollRow struct {
	ID          string      `json:"id"`
	Incarnation string      `json:"incarnation,omitempty"`
	Kind        engine.Kind `json:"kind"` // "" = not recognised yet
	// Age is the age of the newest poll that brought something; null = there was none.
	Age *time.Duration `json:"age_ns"`
	// Successes and Failures count polls, FailuresInRow those that failed since the last good one.
	Successes     uint64 `json:"successes"`
	Failures      uint64 `json:"failures"`
	FailuresInRow int    `json:"failures_in_row"`
	// LastReason and LastError are those of the newest failure, however long ago.
	LastReason scrape.Reason `json:"last_reason,omitempty"`
	LastError  string        `json:"last_error,omitempty"`
	LastFailed *time.Time    `json:"last_failed,omitempty"`
	// Backoff is the longest time until the next poll after failures.
	Backoff time.Duration `json:"backoff_ns"`
	// Mean and Max are how long polls take.
	Mean time.Duration `json:"mean_ns"`
	Max  time.Duration `json:"max_ns"`
}

func pollRows(s scrape.Stats) []pollRow {
	out := make([]pollRow, 0, len(s.Endpoints))
	for _, e := range s.Endpoints {
		row := pollRow{
			ID: e.ID, Incarnation: e.Incarnation, Kind: e.Kind, Successes: e.Successes, Failures: e.Failures,
			FailuresInRow: e.ConsecutiveFailures, LastReason: e.Reason, LastError: e.Error, Backoff: e.Backoff,
			Mean: e.MeanDuration, Max: e.MaxDuration,
		}
		if e.Age >= 0 {
			row.Age = &e.Age
		}
		if !e.LastFailure.IsZero() {
			row.LastFailed = &e.LastFailure
		}
		out = append(out, row)
	}
	return out
}

// fromHere says that a request comes from this machine, by its own account, too: not through a proxy, and not from a web
// page that has a name of its own point here. HTTP/1.0 is what proxies speak that add no header of their own.
func fromHere(r *http.Request) bool {
	if !r.ProtoAtLeast(1, 1) {
		return false
	}
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !peer.Addr().Unmap().IsLoopback() {
		return false
	}
	for _, h := range []string{"Forwarded", "X-Forwarded-For", "X-Real-Ip", "Via"} {
		if r.Header.Get(h) != "" {
			return false
		}
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if host == "localhost" {
		return true
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && addr.Unmap().IsLoopback()
}

func writeJSON(w http.ResponseWriter, v any) {
	body, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		httptransport.WriteError(w, fmt.Errorf("gateway: %w", err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(body, '\n')) // fails only where the client has gone
}
