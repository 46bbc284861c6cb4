package scrape

import (
	"bytes"
	"io"
	"maps"
	"time"

	"github.com/isobar-go/isobar/telemetry"
	"github.com/isobar-go/isobar/telemetry/engine"
)

// reader is package engine for one life of one endpoint: it remembers which kind of engine that is, and tells restarts.
// One poll at a time uses it.
type reader struct {
	given  engine.Parser
	fault  error         // of given
	parser engine.Parser // with the kind, once that is known
	lives  *lives
}

// newReader makes a reader of documents up to maxBytes.
func newReader(given engine.Parser, maxBytes int64, known *lives) *reader {
	given.Labels = maps.Clone(given.Labels) // the list is the host's
	r := &reader{given: given, fault: given.Validate(), parser: given, lives: known}
	if r.parser.MaxBytes == 0 {
		r.parser.MaxBytes = maxBytes
	}
	return r
}

// lives is what is known of the restarts of one endpoint. It outlasts the readers of one life: the sink remembers the newest
// epoch, and counting from one again would look like one more restart.
type lives struct {
	engine.Lives
	polls int64
}

// apply has polls follow each other as they came, also where the host's clock has gone back meanwhile.
func (l *lives) apply(rep *engine.Report) {
	at := rep.Snapshot.ObservedAt
	l.polls++
	rep.Snapshot.ObservedAt = time.Unix(0, l.polls)
	l.Apply(rep)
	rep.Snapshot.ObservedAt = at
}

// same says whether the reader was made for such a parser.
func (r *reader) same(given engine.Parser) bool {
	return r.given.Kind == given.Kind && r.given.Model == given.Model && r.given.MaxBytes == given.MaxBytes &&
		maps.Equal(r.given.Labels, given.Labels)
}

// read parses a document. A kind that was recognised, and not given, is forgotten with the first document that does not
// fit it: something else may serve there now.
func (r *reader) read(body io.Reader, at time.Time) (telemetry.Snapshot, error) {
	if r.parser.Kind == "" {
		text, err := io.ReadAll(body)
		if err != nil {
			return telemetry.Snapshot{}, err
		}
		kind, err := engine.Detect(text)
		if err != nil {
			return telemetry.Snapshot{}, err
		}
		r.parser.Kind = kind
		body = bytes.NewReader(text)
	}
	report, err := r.parser.Report(body, at)
	if err != nil {
		r.parser.Kind = r.given.Kind
		return telemetry.Snapshot{}, err
	}
	r.lives.apply(&report)
	return report.Snapshot, nil
}
