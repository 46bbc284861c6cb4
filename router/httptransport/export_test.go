package httptransport

import "github.com/isobar-go/isobar/router"

// The meter's limits, bytes.
const (
	MaxLine   = maxLine
	TailBytes = tailBytes
)

// MaxAddresses bounds the addresses that a Transport remembers.
const MaxAddresses = maxAddresses

// Addresses is the number of addresses that a Transport remembers.
func (t *Transport) Addresses() int {
	n := 0
	t.addresses.known.Range(func(any, any) bool { n++; return true })
	return n
}

// Parse parses an address as RoundTrip does.
func (t *Transport) Parse(address string) error {
	_, err := t.addresses.parse(address)
	return err
}

// MeterResult is what a meter has found.
type MeterResult struct {
	First    bool
	Tokens   int
	Usage    router.Usage
	Last     bool
	Fault    error
	Complete bool // before the end was told
}

// MeterAll meters a body that comes in these pieces.
func MeterAll(contentType string, pieces ...[]byte) MeterResult {
	m := meter{kind: kindOf(map[string][]string{"Content-Type": {contentType}})}
	for _, p := range pieces {
		m.feed(p)
	}
	complete := m.complete()
	m.finish()
	return MeterResult{First: m.first, Tokens: m.tokens, Usage: m.usage, Last: m.last, Fault: m.fault, Complete: complete}
}
