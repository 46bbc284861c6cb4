package workload

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// Format is the layout of a trace.
type Format string

// The formats.
const (
	// FormatAuto is recognized by the first line. It is the zero value.
	FormatAuto Format = ""
	// FormatMooncake: JSON Lines with timestamp (ms), input_length, output_length and hash_ids, one for every block of 512
	// tokens, the last of which may be partial. Equal ids mean equal blocks with equal blocks before them.
	FormatMooncake Format = "mooncake"
	// FormatBlocks16 is the same with blocks of 16 tokens.
	FormatBlocks16 Format = "blocks16"
	// FormatAzure: CSV with the header timestamp_ms,input_length,output_length, or TIMESTAMP,ContextTokens,GeneratedTokens
	// with dates as published by Azure. It says nothing of prefixes: no two requests share a block.
	FormatAzure Format = "azure"
	// FormatSessions: JSON Lines with session, t_ms (since the session's start), input_length, output_length, think_ms (gap
	// before the request), shared_prefix_tokens and runs, a list of [first id, count] of blocks of 64 tokens. See
	// ReadOptions.SeparateSessions.
	FormatSessions Format = "sessions"
)

// DefaultMaxLine is the length of a line, in bytes, from which on it is refused.
const DefaultMaxLine = 1 << 20

// ReadOptions say how to read a trace. The zero value works. It is a plain value.
type ReadOptions struct {
	// Format of the trace; zero = recognize it by its first line.
	Format Format
	// Name appears in errors and keeps the block numbers of two traces apart. Empty = the file's name without its folder,
	// or "trace" for a reader without one.
	Name string
	// MaxLine is the length that a line must stay below, in bytes with its end, 16 to 1<<30; 0 = DefaultMaxLine. A reader
	// has a buffer of that size.
	MaxLine int
	// SeparateSessions ignores shared_prefix_tokens in FormatSessions, so that sessions never share a block. Without it,
	// sessions with the same number of shared tokens are taken to begin with the same tools and system prompt, as far as
	// a request has the blocks with which its session began. (The ids themselves never tell of sharing between sessions.)
	SeparateSessions bool
}

// Validate names the first field that is out of range.
func (o ReadOptions) Validate() error {
	switch o.Format {
	case FormatAuto, FormatMooncake, FormatBlocks16, FormatAzure, FormatSessions:
	default:
		return fmt.Errorf("workload: Format is %q, it must be mooncake, blocks16, azure, sessions or empty", string(o.Format))
	}
	if o.MaxLine != 0 && (o.MaxLine < 16 || o.MaxLine > 1<<30) {
		return fmt.Errorf("workload: MaxLine is %d, it must be 0 or in [16, 1073741824]", o.MaxLine)
	}
	return nil
}

// Reader is a Stream of the requests of a trace, in the order of its lines. IDs count from 0. The first bad line ends it,
// with an error that has the name of the trace and the number of the line, from 1. Blank lines are skipped. Outputs of 0
// tokens, which some servers report, become 1. Traces compressed by gzip are recognized.
//
// Lines must be in order of arrival; in FormatSessions, this holds within each session. Requests of that format have the
// time since the start of their session in Arrival: use StartSessions. What a Reader keeps in memory is its line buffer
// and, in FormatSessions, some bytes for every session.
//
// A Reader belongs to one goroutine at a time.
type Reader struct {
	name   string
	format Format
	in     *bufio.Reader
	file   io.Closer
	held   []byte // first line, read to recognize the format
	line   int
	err    error
	parse  func(line []byte, r *Request) error

	nextID uint64
	base   uint64 // number of the first block
	last   time.Duration
	arena  []Segment

	hashLine    hashLine
	sessionLine sessionLine
	sessions    map[int64]*sessionState
	start       time.Time // of an Azure trace with dates
	dated       bool
	used        uint64 // blocks numbered so far, where the trace has no ids
}

// OpenFile opens the trace at path. The Reader must be closed.
func OpenFile(path string, o ReadOptions) (*Reader, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("workload: %w", err)
	}
	if o.Name == "" {
		o.Name = filepath.Base(path)
	}
	r, err := NewReader(f, o)
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	r.file = f
	return r, nil
}

// ReadFile reads the whole trace at path. With an error it returns no requests.
func ReadFile(path string, o ReadOptions) (Workload, error) {
	r, err := OpenFile(path, o)
	if err != nil {
		return nil, err
	}
	w, err := ReadAll(r)
	if closeErr := r.Close(); err == nil && closeErr != nil {
		return nil, closeErr
	}
	return w, err
}

// NewReader reads a trace from in, and from it at once what it needs to recognize the format.
func NewReader(in io.Reader, o ReadOptions) (*Reader, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.Name == "" {
		o.Name = "trace"
	}
	if o.MaxLine == 0 {
		o.MaxLine = DefaultMaxLine
	}
	r := &Reader{name: o.Name, format: o.Format}
	raw := bufio.NewReader(in)
	in = struct{ io.Reader }{raw} // else NewReaderSize would take raw itself, whose buffer has another size
	if magic, _ := raw.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(raw)
		if err != nil {
			return nil, fmt.Errorf("workload: %s: %w", r.name, err)
		}
		in = z
	}
	r.in = bufio.NewReaderSize(in, o.MaxLine)
	if err := r.begin(o.SeparateSessions); err != nil {
		return nil, err
	}
	return r, nil
}

// begin finds the format and consumes a header.
func (r *Reader) begin(separate bool) error {
	if r.format == FormatAuto || r.format == FormatAzure {
		line, err := r.readLine()
		if err != nil && !errors.Is(err, io.EOF) {
			return r.fault(err)
		}
		line = bytes.TrimPrefix(line, []byte("\uFEFF"))
		header, azure := azureHeader(line)
		switch {
		case err != nil:
			return fmt.Errorf("workload: %s: it has no line to tell its format", r.name)
		case azure:
			r.format, r.dated = FormatAzure, header == headerDated
		case r.format == FormatAzure:
			return r.fault(fmt.Errorf("the header is %.80q, it must be %s or %s", line, headerMillis, headerDated))
		default:
			if r.format, err = recognize(line); err != nil {
				return r.fault(err)
			}
			r.held = bytes.Clone(line)
		}
	}
	r.base = hashOf("trace", string(r.format), r.name)
	switch r.format {
	case FormatMooncake:
		r.parse = func(line []byte, q *Request) error { return r.parseHashIDs(line, q, 512) }
	case FormatBlocks16:
		r.parse = func(line []byte, q *Request) error { return r.parseHashIDs(line, q, 16) }
	case FormatAzure:
		r.parse = r.parseAzure
	case FormatSessions:
		r.sessions = map[int64]*sessionState{}
		r.parse = func(line []byte, q *Request) error { return r.parseSession(line, q, separate) }
	}
	return nil
}

// Format is the format that was given or recognized.
func (r *Reader) Format() Format { return r.format }

// Line is the number of the line that the last request or error came from, from 1; 0 before the first.
func (r *Reader) Line() int { return r.line }

// Next returns the next request; false at the end and after an error.
func (r *Reader) Next() (Request, bool) {
	if r.err != nil {
		return Request{}, false
	}
	line := r.held
	r.held = nil
	if line == nil {
		var err error
		if line, err = r.readLine(); err != nil {
			r.err = err
			if !errors.Is(err, io.EOF) {
				r.err = r.fault(err)
			}
			return Request{}, false
		}
	}
	q := Request{ID: r.nextID}
	if err := r.parse(line, &q); err != nil {
		r.err = r.fault(err)
		return Request{}, false
	}
	r.nextID++
	return q, true
}

// Err is what stopped the reader; nil at the end of the trace.
func (r *Reader) Err() error {
	if r.err == io.EOF {
		return nil
	}
	return r.err
}

// Close closes the file of OpenFile. Of a Reader from NewReader it closes nothing.
func (r *Reader) Close() error {
	if r.file == nil {
		return nil
	}
	f := r.file
	r.file = nil
	if err := f.Close(); err != nil {
		return fmt.Errorf("workload: %s: %w", r.name, err)
	}
	return nil
}

// readLine returns the next line that is not blank, without blanks at its ends; it is valid until the next call. At the end
// of the input the error is io.EOF itself.
func (r *Reader) readLine() ([]byte, error) {
	for {
		b, err := r.in.ReadSlice('\n')
		if len(b) > 0 || (err != nil && err != io.EOF) {
			r.line++
		}
		switch {
		case err == nil || (err == io.EOF && len(b) > 0):
		case errors.Is(err, bufio.ErrBufferFull):
			return nil, fmt.Errorf("the line is not shorter than MaxLine, %d bytes", r.in.Size())
		default:
			return nil, err
		}
		if b = bytes.TrimSpace(b); len(b) > 0 {
			return b, nil
		}
	}
}

// fault gives an error its place. The cause is never io.EOF, which means a regular end.
func (r *Reader) fault(err error) error {
	return fmt.Errorf("workload: %s:%d: %w", r.name, r.line, err)
}

// segments copies s into memory that many requests share.
func (r *Reader) segments(s []Segment) []Segment {
	if len(s) == 0 {
		return nil
	}
	if cap(r.arena)-len(r.arena) < len(s) {
		r.arena = make([]Segment, 0, max(4096, len(s)))
	}
	at := len(r.arena)
	r.arena = append(r.arena, s...)
	return r.arena[at:len(r.arena):len(r.arena)]
}

// ordered holds arrivals to the order of the lines.
func (r *Reader) ordered(at time.Duration, field string) error {
	if at < r.last {
		return fmt.Errorf("%s is %v, before that of the line before, %v", field, at, r.last)
	}
	r.last = at
	return nil
}
