package gateway

import (
	"context"
	"io"

	"github.com/isobar-go/isobar/router"
)

// ErrorEvents is a stream's body as a gateway passes it on.
func ErrorEvents(ctx context.Context, body io.ReadCloser) io.ReadCloser {
	return &errorEvents{ReadCloser: body, ctx: ctx}
}

// MaxOpen bounds the receipts of open requests in a Ring.
const MaxOpen = maxOpen

// Seams of the pages.
var (
	FromHere = fromHere
	Harmless = harmless
)

// Lobby is a pool in which nobody waits any more once closed is done.
func Lobby(p *router.Pool, closed context.Context) router.Router { return &lobby{p, p, closed} }
