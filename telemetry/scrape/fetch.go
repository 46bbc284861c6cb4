package scrape

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/isobar-go/isobar/telemetry"
	"github.com/isobar-go/isobar/telemetry/engine"
)

// source is what a snapshot names as its source if the parser names none.
const source = "scrape"

// newTransport is that of a poller whose host gives no client. It reads no environment. HTTP/2 would send every poll into
// one connection, also after its other end has gone without a word; in HTTP/1.1 a poll that times out takes its connection
// with it.
func newTransport() *http.Transport {
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Transport{
		DialContext:            dialer.DialContext,
		Protocols:              protocols,
		TLSHandshakeTimeout:    10 * time.Second,
		MaxIdleConnsPerHost:    1024, // many endpoints may have one host in front
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
	}
}

// redirects returns the rule for following redirects; host is the client's own and may be nil. Another port of one host is
// often another engine, so that it may change only together with the scheme.
func redirects(most int, host func(*http.Request, []*http.Request) error) func(*http.Request, []*http.Request) error {
	return func(req *http.Request, via []*http.Request) error {
		from, to := via[len(via)-1].URL, req.URL
		switch {
		case len(via) > most:
			return fmt.Errorf("%w: more than %d", errRedirect, most)
		case to.Scheme != from.Scheme && to.Scheme != "https":
			return fmt.Errorf("%w: from %s to %s", errRedirect, from.Scheme, to.Scheme)
		case !strings.EqualFold(to.Hostname(), from.Hostname()) || to.Scheme == from.Scheme && port(to) != port(from):
			return fmt.Errorf("%w: to another host, %q", errRedirect, to.Host)
		case host == nil:
			return nil
		}
		err := host(req, via)
		if err != nil && !errors.Is(err, http.ErrUseLastResponse) {
			return fmt.Errorf("%w: %w", errRedirect, err)
		}
		return err
	}
}

func port(u *url.URL) string {
	switch p := u.Port(); {
	case p != "":
		return p
	case u.Scheme == "https":
		return "443"
	}
	return "80"
}

// parseFunc is the type of Config.Parse.
type parseFunc = func(body io.Reader, at time.Time) (telemetry.Snapshot, error)

// fetch asks one endpoint. Of its results one is empty.
func (p *Poller) fetch(ctx context.Context, t *Target, sent time.Time, parse parseFunc) (telemetry.Snapshot, *Error) {
	fail := func(r Reason, err error) (telemetry.Snapshot, *Error) {
		switch {
		case isTimeout(err):
			r = ReasonTimeout
		case errors.Is(err, errRedirect):
			r = ReasonRedirect
		case errors.Is(err, errTooLarge):
			r = ReasonTooLarge
		}
		return telemetry.Snapshot{}, &Error{ID: t.ID, Reason: r, Err: err}
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	req, err := newRequest(ctx, t.URL)
	if err != nil {
		return fail(ReasonTarget, err)
	}
	resp, err := p.client.Do(req)
	if err != nil {
		var inURL *url.Error
		if errors.As(err, &inURL) {
			err = inURL.Err
		}
		return fail(ReasonConnection, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		keep(resp)
		return telemetry.Snapshot{}, &Error{ID: t.ID, Reason: ReasonStatus, Status: resp.StatusCode}
	}
	compressed, err := checkHeader(resp.Header)
	switch {
	case err != nil:
		return fail(ReasonContent, err)
	case resp.ContentLength > p.cfg.MaxBytes:
		return fail(ReasonTooLarge, errTooLarge)
	}
	var body io.Reader = resp.Body
	if compressed {
		z, err := p.inflaters.open(body, p.cfg.MaxBytes)
		if err != nil {
			return fail(ReasonBody, err)
		}
		defer p.inflaters.close(z)
		body = z
	}
	doc := &limited{r: body, left: p.cfg.MaxBytes}
	s, parseErr := guarded(parse, doc, sent)
	if parseErr == nil {
		// The rest must be sound too, and the connection can be used again only when it has been read.
		_, _ = io.Copy(io.Discard, doc)
	}
	if err := doc.broken(); err != nil {
		return fail(ReasonBody, err)
	}
	switch {
	case errors.Is(parseErr, engine.ErrTooLarge):
		return fail(ReasonTooLarge, parseErr)
	case parseErr != nil:
		return telemetry.Snapshot{}, &Error{ID: t.ID, Reason: ReasonParse, Err: parseErr}
	}
	notAfter(&s, sent)
	if s.Source == "" {
		s.Source = source
	}
	return s, nil
}

func newRequest(ctx context.Context, address string) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil || req.URL.Host == "" || req.URL.Scheme != "http" && req.URL.Scheme != "https" {
		return nil, errors.New("URL is not an absolute http or https address")
	}
	req.Header.Set("Accept", "text/plain;version=0.0.4, application/json;q=0.5, */*;q=0.1")
	// Asked for here, so that any transport passes it on and leaves the unpacking, and its bounds, to this package.
	req.Header.Set("Accept-Encoding", "gzip")
	req.Header.Set("User-Agent", "isobar-scrape")
	return req, nil
}

// checkHeader says whether the body is compressed. Most media types are left to the parser, since engines are careless
// with them; those refused here are known to hold no metrics, and a stream of events would only end with the timeout.
func checkHeader(h http.Header) (compressed bool, err error) {
	if kind, _, err := mime.ParseMediaType(h.Get("Content-Type")); err == nil {
		switch kind {
		case "text/html", "application/xhtml+xml", "text/event-stream":
			return false, fmt.Errorf("media type %s", kind)
		}
	}
	switch encoding := strings.ToLower(strings.TrimSpace(h.Get("Content-Encoding"))); encoding {
	case "", "identity":
		return false, nil
	case "gzip", "x-gzip":
		return true, nil
	default:
		return false, fmt.Errorf("content encoding %q", encoding)
	}
}

// keep reads what little there may be of an error page, so that the connection can be used again.
func keep(resp *http.Response) {
	if resp.ContentLength >= 0 && resp.ContentLength <= 4096 {
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 4096))
	}
}

// guarded calls the parser. What an engine has sent must not end the process.
func guarded(parse parseFunc, r io.Reader, at time.Time) (s telemetry.Snapshot, err error) {
	defer func() {
		if v := recover(); v != nil {
			s, err = telemetry.Snapshot{}, fmt.Errorf("the parser panicked: %v", v)
		}
	}()
	return parse(r, at)
}

// notAfter bounds the times of a snapshot and of its readings: a later one would let them speak of leases that they cannot have
// seen. The list of ranks may be the parser's own and is copied where it has to change.
func notAfter(s *telemetry.Snapshot, sent time.Time) {
	if s.ObservedAt.IsZero() || s.ObservedAt.After(sent) {
		s.ObservedAt = sent
	}
	late := func(readings ...*telemetry.Reading) (any bool) {
		for _, r := range readings {
			if v, known := r.Value(); known && r.ObservedAt().After(sent) {
				*r, any = telemetry.At(v, sent), true
			}
		}
		return any
	}
	late(&s.Running, &s.Waiting, &s.WaitingTokens, &s.DecodeTokens, &s.KVUsed, &s.KVCapacity, &s.KVShare,
		&s.GenerationRate, &s.PrefixHitRate, &s.MaxRunning)
	for i, r := range s.Ranks {
		if late(&r.Running, &r.Waiting, &r.WaitingTokens, &r.DecodeTokens, &r.KVUsed, &r.KVCapacity, &r.KVShare,
			&r.GenerationRate, &r.PrefixHitRate, &r.MaxRunning) {
			s.Ranks = slices.Clone(s.Ranks)
			s.Ranks[i] = r
		}
	}
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &t) && t.Timeout()
}
