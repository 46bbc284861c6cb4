package calibrate

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/isobar-go/isobar/router"
)

// MaxLine is the longest line that a [Reader] takes, bytes: a receipt of some ten thousand candidates.
const MaxLine = 16 << 20

// LineError is a line that is no receipt. A LineError is a plain value.
type LineError struct {
	// Line is its number, from 1.
	Line int
	// Err is what is wrong with it.
	Err error
}

// Error names the line.
func (e *LineError) Error() string { return fmt.Sprintf("calibrate: line %d: %v", e.Line, e.Err) }

// Unwrap is what is wrong with it.
func (e *LineError) Unwrap() error { return e.Err }

var (
	errNotObject = errors.New("not a JSON object")
	errTooLong   = errors.New("longer than 16 MiB")
)

// Reader reads receipts from JSON Lines as [router.JSONLines] writes them. Empty lines are passed over, fields that it does not
// know too. A Reader belongs to one goroutine at a time.
type Reader struct {
	from *bufio.Reader
	line int
	buf  []byte
	err  error
}

// NewReader makes a reader. It reads ahead.
func NewReader(r io.Reader) *Reader { return &Reader{from: bufio.NewReaderSize(r, 64<<10)} }

// Next returns the next receipt, or io.EOF at the end. A line that is no receipt is a [*LineError], and the next call goes on
// with the line after it; an error of the underlying reader stays.
func (r *Reader) Next() (*router.Receipt, error) {
	for r.err == nil {
		long := r.readLine()
		if r.err != nil && !errors.Is(r.err, io.EOF) {
			break
		}
		text := bytes.TrimSpace(r.buf)
		switch {
		case long:
			return nil, &LineError{r.line, errTooLong}
		case len(text) == 0:
			continue
		case text[0] != '{':
			return nil, &LineError{r.line, errNotObject}
		}
		receipt := new(router.Receipt)
		if err := json.Unmarshal(text, receipt); err != nil {
			return nil, &LineError{r.line, err}
		}
		return receipt, nil
	}
	if !errors.Is(r.err, io.EOF) {
		return nil, fmt.Errorf("calibrate: reading after line %d: %w", r.line, r.err)
	}
	return nil, io.EOF
}

// readLine reads a line into buf and sets err at the end. Of a line that is too long it keeps nothing.
func (r *Reader) readLine() (long bool) {
	r.buf = r.buf[:0]
	for {
		part, err := r.from.ReadSlice('\n')
		if len(part) > 0 || err == nil {
			if long = long || len(r.buf)+len(part) > MaxLine; long {
				r.buf = r.buf[:0]
			} else {
				r.buf = append(r.buf, part...)
			}
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if r.err = err; err == nil || errors.Is(err, io.EOF) && (len(r.buf) > 0 || long) {
			r.line++
		}
		return long
	}
}

// AddLines adds every receipt of JSON Lines and returns how many it has read. It stops at the first line that is none, with a
// [*LineError]; what came before it counts. To pass over such lines use a [Reader].
func (c *Calibrator) AddLines(from io.Reader) (int, error) {
	lines := NewReader(from)
	for n := 0; ; n++ {
		r, err := lines.Next()
		switch {
		case errors.Is(err, io.EOF):
			return n, nil
		case err != nil:
			return n, err
		}
		c.Add(r)
	}
}
