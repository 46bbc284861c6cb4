package httptransport

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/isobar-go/isobar/router"
)

// ValidateAddress reports what makes the Address of an endpoint unusable for a Transport: it must be a URL that begins with
// http:// or https:// and a host. A path is put before that of the requests, a query before theirs, and a user with a
// password is sent as basic authentication where a request has no Authorization of its own. The error shows no credentials.
func ValidateAddress(address string) error {
	_, err := parseAddress(address)
	return err
}

// RedactAddress is an address without the credentials that may be in it, its user and its query, for logs and pages.
func RedactAddress(address string) string {
	const hidden = "xxxxx"
	u, err := url.Parse(address)
	if err != nil || u.Opaque != "" { // of no known parts: what can stand before the host or behind the path is left out
		scheme, rest, ok := strings.Cut(address, "//")
		if !ok {
			scheme, rest = "", address
		} else {
			scheme += "//"
		}
		if i := strings.LastIndexByte(rest, '@'); i >= 0 {
			scheme, rest = scheme+hidden, rest[i:]
		}
		rest, _, _ = strings.Cut(rest, "?")
		return scheme + rest
	}
	if u.User != nil {
		u.User = url.User(hidden)
	}
	if u.RawQuery != "" {
		u.RawQuery = hidden
	}
	return u.String()
}

func parseAddress(address string) (*url.URL, error) {
	u, err := url.Parse(address)
	if err != nil { // its text quotes the address
		return nil, fmt.Errorf("httptransport: Address = %q is not a URL", RedactAddress(address))
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("httptransport: Address = %q must begin with http:// or https:// and a host", RedactAddress(address))
	}
	return u, nil
}

// maxAddresses bounds the addresses that are remembered. Where there are more, they are learned anew.
const maxAddresses = 4096

// addresses remembers parsed addresses. The zero value is empty; any number of goroutines may use it.
type addresses struct {
	known sync.Map     // string to *url.URL
	count atomic.Int64 // of those added since known was empty
}

// parse returns the parts of an address. They are shared: do not write to them.
func (a *addresses) parse(address string) (*url.URL, error) {
	if u, ok := a.known.Load(address); ok {
		return u.(*url.URL), nil
	}
	u, err := parseAddress(address)
	if err != nil {
		return nil, err
	}
	if a.count.Add(1) > maxAddresses {
		a.known.Clear()
		a.count.Store(1)
	}
	a.known.Store(address, u)
	return u, nil
}

// target is the request's URL on an endpoint with this address: scheme and host of the address, the two paths joined, both queries.
func target(base, in *url.URL) (*url.URL, error) {
	out := *in
	out.Scheme, out.Host, out.User, out.Opaque = base.Scheme, base.Host, base.User, ""
	if base.Path != "" && base.Path != "/" {
		// Joined in escaped form, so that %2F in either stays what it is.
		escaped := strings.TrimSuffix(base.EscapedPath(), "/")
		if rest := in.EscapedPath(); rest != "" {
			escaped += "/" + strings.TrimPrefix(rest, "/")
		}
		path, err := url.PathUnescape(escaped)
		if err != nil {
			return nil, fmt.Errorf("httptransport: path %q: %w", escaped, err)
		}
		out.Path, out.RawPath = path, escaped
	}
	switch {
	case base.RawQuery == "":
	case in.RawQuery == "":
		out.RawQuery = base.RawQuery
	default:
		out.RawQuery = base.RawQuery + "&" + in.RawQuery
	}
	return &out, nil
}

// verdict is what a status says about the endpoint at once, without its body; see the package comment.
func verdict(code int) (cause router.Cause, ended bool) {
	switch {
	case code == http.StatusTooManyRequests:
		return router.Refused, true
	case code >= 500:
		return router.Failed, true
	}
	return router.Completed, false
}

// retryStatus is the default of Transport.RetryStatus.
func retryStatus(code int) bool {
	switch code {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}
