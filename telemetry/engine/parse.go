package engine

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/isobar-go/isobar/telemetry"
)

// DefaultMaxBytes is the default of Parser.MaxBytes.
const DefaultMaxBytes = 8 << 20

var (
	// ErrKind is an unknown kind of engine.
	ErrKind = errors.New("unknown kind")
	// ErrEmpty is a document without any content.
	ErrEmpty = errors.New("empty document")
	// ErrTooLarge is a document of more bytes, entries or ranks than there may be.
	ErrTooLarge = errors.New("document too large")
	// ErrNotPrometheus is a document that is not in the Prometheus text format, or is broken where it matters.
	ErrNotPrometheus = errors.New("not a Prometheus text document")
	// ErrNotJSON is a document that is not the JSON that a kind with a JSON document prints.
	ErrNotJSON = errors.New("not a JSON load document")
	// ErrJSON comes with ErrNotPrometheus and says that the document is JSON: trtllm-serve for one has its Prometheus text
	// at another path than other engines, see Kind.Path.
	ErrJSON = errors.New("it is JSON")
	// ErrMarkup comes with ErrNotPrometheus or ErrNotJSON and says that the document is HTML or XML: that of a proxy or a
	// login page.
	ErrMarkup = errors.New("it is markup")
	// ErrNoEntries is a JSON report without a single entry, which is no report of zeros: [], {} or {"loads": []}.
	ErrNoEntries = errors.New("no entries")
	// ErrNoSignals is a document in which nothing is of this kind of engine or, with a Model or Labels, of what they name.
	ErrNoSignals = errors.New("no signals of the engine")
	// ErrUndetected is a document of which Detect cannot tell the kind.
	ErrUndetected = errors.New("kind of engine not recognised")
	// ErrLoadHeader is an in-band report that cannot be read.
	ErrLoadHeader = errors.New("not a load report")
)

// Parser reads the documents of one kind of engine. It is a plain value: any number of goroutines may use it as long as
// nobody changes it or its map.
type Parser struct {
	// Kind is the engine. "" means VLLM.
	Kind Kind
	// Model keeps only the series whose model label has this value or that have no such label. "" keeps all: the counts
	// of several models on one rank then add up. JSON documents name no model and are read whole.
	Model string
	// Labels keeps only the series that have these values of these labels or have no such label: one replica of those in
	// the document of a Ray node ("ReplicaId"), one worker of those of an SGLang gateway ("worker_addr"). Without it
	// they count as ranks of one engine. JSON documents have no labels.
	Labels map[string]string
	// MaxBytes is the greatest size of a document, in bytes, 1 or more. 0 means DefaultMaxBytes.
	MaxBytes int64
}

// Report is a snapshot and what else the document says. It belongs to the caller.
type Report struct {
	Snapshot telemetry.Snapshot
	// Activity is what the engine says about the adapters of current requests.
	Activity Activity
	// AdapterSlots is how many adapters fit into device memory at once. 0 is unknown.
	AdapterSlots int

	counters map[string]float64 // that only a restart sets back; for Lives
}

// Activity names the adapters of current requests. It says nothing about which adapters are in memory: a waiting one
// need not be, and an idle one may be. It is plain data.
type Activity struct {
	// Known says that it was reported.
	Known bool
	// Running and Waiting are the adapters of running and of waiting requests, sorted, each once.
	Running, Waiting []string
}

// Active returns the adapters of running and of waiting requests as one set, sorted. The slice belongs to the caller.
func (a Activity) Active() []string {
	all := slices.Concat(a.Running, a.Waiting)
	slices.Sort(all)
	return slices.Compact(all)
}

// Validate returns an error that joins all faults of the configuration.
func (p Parser) Validate() error {
	var errs []error
	if p.dialect() == nil {
		errs = append(errs, fmt.Errorf("engine: Kind %q: %w", p.Kind, ErrKind))
	}
	if p.MaxBytes < 0 {
		errs = append(errs, fmt.Errorf("engine: MaxBytes %d is negative", p.MaxBytes))
	}
	if _, ok := p.Labels[""]; ok {
		errs = append(errs, errors.New("engine: Labels has a label without a name"))
	}
	return errors.Join(errs...)
}

// Parse reads a document of an engine of the given kind that was requested at observedAt. It is the same as
// Parser{Kind: kind}.Parse of the body.
func Parse(kind Kind, body []byte, observedAt time.Time) (telemetry.Snapshot, error) {
	return Parser{Kind: kind}.Parse(bytes.NewReader(body), observedAt)
}

// Parse reads a document that was requested at observedAt. On an error, which wraps one of this package's Err values or
// is that of r, the snapshot is empty.
func (p Parser) Parse(r io.Reader, observedAt time.Time) (telemetry.Snapshot, error) {
	rep, err := p.Report(r, observedAt)
	return rep.Snapshot, err
}

// Report reads a document like Parse and returns everything it says.
func (p Parser) Report(r io.Reader, observedAt time.Time) (Report, error) {
	if err := p.Validate(); err != nil {
		return Report{}, err
	}
	d := p.dialect()
	limit := p.MaxBytes
	if limit == 0 {
		limit = DefaultMaxBytes
	}
	if d.loads != nil {
		return d.loadReport(r, limit, observedAt)
	}
	doc, err := d.extract(r, limit)
	if err != nil {
		return Report{}, err
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(doc.lines))
	if err != nil {
		return Report{}, fmt.Errorf("engine: %w: %w", ErrNotPrometheus, err)
	}
	return d.textReport(families, doc.declared, &p, observedAt)
}

func (p Parser) dialect() *dialect {
	if p.Kind == "" {
		return VLLM.dialect()
	}
	return p.Kind.dialect()
}

// document is what matters of a body.
type document struct {
	lines    []byte          // the sample lines of the dialect's families
	declared map[string]bool // the dialect's families that have a TYPE line, with or without samples
}

// extract keeps the lines that the dialect knows, so that the grammar is applied to them alone.
func (d *dialect) extract(r io.Reader, limit int64) (document, error) {
	var doc document
	counted := &io.LimitedReader{R: r, N: min(limit, math.MaxInt64-1) + 1}
	in := bufio.NewReaderSize(counted, 64<<10)
	content, judged, samples := false, false, false
	var long []byte
	for {
		line, err := in.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			long = append(long, line...)
			continue
		}
		if len(long) > 0 {
			long = append(long, line...)
			line = long
		}
		if counted.N <= 0 {
			return document{}, fmt.Errorf("engine: %w: more than %d bytes", ErrTooLarge, limit)
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return document{}, fmt.Errorf("engine: reading the document: %w", err)
		}
		complete := bytes.HasSuffix(line, []byte("\n"))
		text := bytes.TrimSpace(line)
		content = content || len(text) > 0
		if !judged && len(text) > 0 && text[0] != '#' {
			judged = true
			if err := notText(text); err != nil {
				return document{}, err
			}
		}
		if family, ok := typeLine(text); ok && d.knows(family) {
			if doc.declared == nil {
				doc.declared = make(map[string]bool)
			}
			doc.declared[string(family)] = true
		}
		family := text[:nameLen(text)]
		rest := text[len(family):]
		switch {
		case !d.knows(family) || len(rest) > 0 && bytes.IndexByte([]byte(" \t{"), rest[0]) < 0: // or the name goes on
			samples = samples || isSample(rest)
		case !complete:
			return document{}, fmt.Errorf("engine: %w: cut off in a line of %s", ErrNotPrometheus, family)
		default:
			samples = true
			doc.lines = append(append(doc.lines, text...), '\n')
		}
		long = long[:0]
		if err != nil {
			break
		}
	}
	switch {
	case !content:
		return document{}, fmt.Errorf("engine: %w", ErrEmpty)
	case !samples && len(doc.declared) == 0:
		return document{}, fmt.Errorf("engine: %w", ErrNotPrometheus)
	}
	return doc, nil
}

// notText tells by the first line that is no comment what a document is that cannot be Prometheus text.
func notText(line []byte) error {
	switch {
	case line[0] == '<':
		return fmt.Errorf("engine: %w: %w", ErrNotPrometheus, ErrMarkup)
	case string(line) == "[]", string(line) == "{}":
		return fmt.Errorf("engine: %w: %w with %w", ErrNotPrometheus, ErrJSON, ErrNoEntries)
	case line[0] == '[', line[0] == '{' && !isSample(line): // a name in quotes and braces is no JSON
		return fmt.Errorf("engine: %w: %w", ErrNotPrometheus, ErrJSON)
	}
	return nil
}

// typeLine returns the family of a TYPE line.
func typeLine(text []byte) ([]byte, bool) {
	if len(text) == 0 || text[0] != '#' {
		return nil, false
	}
	var word [4][]byte
	n := 0
	for f := range bytes.FieldsSeq(text) {
		if n < len(word) {
			word[n] = f
		}
		n++
	}
	if n != len(word) || string(word[0]) != "#" || string(word[1]) != "TYPE" {
		return nil, false
	}
	return word[2], true
}

// nameLen returns the length of the metric name at the start of a line.
func nameLen(text []byte) int {
	n := 0
	for n < len(text) && isNameByte(text[n], n == 0) {
		n++
	}
	return n
}

// isSample reports whether what follows a metric name looks like the rest of a sample: labels or none, and a number.
func isSample(rest []byte) bool {
	if len(rest) > 0 && rest[0] == '{' {
		rest = rest[bytes.LastIndexByte(rest, '}')+1:]
	} else if len(rest) > 0 && rest[0] != ' ' && rest[0] != '\t' {
		return false
	}
	for value := range bytes.FieldsSeq(rest) {
		_, err := strconv.ParseFloat(string(value), 64)
		return err == nil || errors.Is(err, strconv.ErrRange)
	}
	return false
}

func isNameByte(b byte, first bool) bool {
	return b == '_' || b == ':' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || !first && b >= '0' && b <= '9'
}

// sampleValue returns the value of a sample. Without TYPE lines every sample is untyped.
func sampleValue(m *dto.Metric) float64 { return m.GetUntyped().GetValue() }
