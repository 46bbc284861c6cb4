package gateway

import (
	"context"
	"io"
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
