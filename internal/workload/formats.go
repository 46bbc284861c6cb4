package workload

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"
)

// maxBlockID bounds the ids of a trace, so that the numbers of all 16-token blocks in them stay in one range.
const maxBlockID = 1 << 48

// maxMillis is the latest time that is accepted: 100 years.
const maxMillis = 100 * 365 * 24 * 3600 * 1000.0

// The headers of FormatAzure.
const (
	headerMillis = "timestamp_ms,input_length,output_length"
	headerDated  = "TIMESTAMP,ContextTokens,GeneratedTokens"
)

// absent marks numbers that a line did not have.
const absent = math.MinInt64

// hashLine is a line of FormatMooncake or FormatBlocks16.
type hashLine struct {
	Timestamp float64  `json:"timestamp"`
	Input     int64    `json:"input_length"`
	Output    int64    `json:"output_length"`
	HashIDs   []uint64 `json:"hash_ids"`

	runs []Segment
}

// sessionLine is a line of FormatSessions.
type sessionLine struct {
	Session int64      `json:"session"`
	Millis  float64    `json:"t_ms"`
	Input   int64      `json:"input_length"`
	Output  int64      `json:"output_length"`
	Think   float64    `json:"think_ms"`
	Shared  int64      `json:"shared_prefix_tokens"`
	Runs    [][]uint64 `json:"runs"`

	runs []Segment
}

// sessionState is what later requests of a session are held to.
type sessionState struct {
	turn  int
	last  time.Duration
	begin Segment // the first run of its first request
}

// recognize tells the format from the first line.
func recognize(line []byte) (Format, error) {
	var probe struct {
		Input   *int64          `json:"input_length"`
		HashIDs []uint64        `json:"hash_ids"`
		Runs    json.RawMessage `json:"runs"`
	}
	if err := json.Unmarshal(line, &probe); err != nil {
		return "", fmt.Errorf("no known format begins with %.80q: %w", line, err)
	}
	switch {
	case probe.Runs != nil:
		return FormatSessions, nil
	case probe.Input != nil && fits(len(probe.HashIDs), *probe.Input, 512):
		return FormatMooncake, nil
	case probe.Input != nil && fits(len(probe.HashIDs), *probe.Input, 16):
		return FormatBlocks16, nil
	}
	return "", fmt.Errorf("no known format begins with %.80q", line)
}

// fits says whether n blocks of the given size cover input tokens, with or without the last partial one.
func fits(n int, input, size int64) bool {
	return int64(n) == input/size || int64(n) == (input+size-1)/size
}

// decode refuses null: it would leave in place what the line before had there, and none of the formats has it.
func decode(line []byte, into any) error {
	if bytes.Contains(line, []byte("null")) {
		return errors.New("null is not a value of this format")
	}
	return json.Unmarshal(line, into)
}

func (r *Reader) parseHashIDs(line []byte, q *Request, size int64) error {
	h := &r.hashLine
	h.Timestamp, h.Input, h.Output, h.HashIDs = math.NaN(), absent, absent, h.HashIDs[:0]
	if err := decode(line, h); err != nil {
		return err
	}
	at, err := millis("timestamp", h.Timestamp)
	if err != nil {
		return err
	}
	if err := setLengths(q, h.Input, h.Output); err != nil {
		return err
	}
	if !fits(len(h.HashIDs), h.Input, size) {
		return fmt.Errorf("hash_ids has %d blocks of %d tokens, input_length is %d", len(h.HashIDs), size, h.Input)
	}
	h.runs = h.runs[:0]
	for _, id := range h.HashIDs {
		if id >= maxBlockID {
			return fmt.Errorf("hash_ids has %d, it must be below %d", id, uint64(maxBlockID))
		}
		h.runs = appendSegment(h.runs, Segment{First: r.base + id*uint64(size/BlockTokens), Blocks: size / BlockTokens})
	}
	if err := r.ordered(at, "timestamp"); err != nil {
		return err
	}
	q.Arrival = at
	q.Segments = r.segments(cut(h.runs, h.Input/BlockTokens))
	return nil
}

func (r *Reader) parseSession(line []byte, q *Request, separate bool) error {
	l := &r.sessionLine
	l.Session, l.Input, l.Output, l.Shared = absent, absent, absent, absent
	l.Millis, l.Think, l.Runs = math.NaN(), math.NaN(), l.Runs[:0]
	if err := decode(line, l); err != nil {
		return err
	}
	at, err := millis("t_ms", l.Millis)
	if err != nil {
		return err
	}
	think, err := millis("think_ms", l.Think)
	if err != nil {
		return err
	}
	if err := setLengths(q, l.Input, l.Output); err != nil {
		return err
	}
	switch {
	case l.Session == absent:
		return errors.New("session is missing")
	case l.Session < 0:
		return fmt.Errorf("session is %d, it must be at least 0", l.Session)
	case l.Shared == absent:
		return errors.New("shared_prefix_tokens is missing")
	case l.Shared < 0:
		return fmt.Errorf("shared_prefix_tokens is %d, it must be at least 0", l.Shared)
	}
	const fine = 64 / BlockTokens
	l.runs = l.runs[:0]
	blocks := uint64(0)
	for i, run := range l.Runs {
		if len(run) != 2 {
			return fmt.Errorf("runs[%d] has %d numbers, it must have 2", i, len(run))
		}
		if run[0] >= maxBlockID || run[1] < 1 || run[1] > MaxTokens {
			return fmt.Errorf("runs[%d] is %v, the first must be below %d and the second in [1, 2147483647]", i, run, uint64(maxBlockID))
		}
		if blocks += run[1]; blocks > MaxTokens {
			break
		}
		l.runs = appendSegment(l.runs, Segment{First: r.base + run[0]*fine, Blocks: int64(run[1]) * fine})
	}
	if blocks > MaxTokens || !fits(int(blocks), l.Input, 64) {
		return fmt.Errorf("runs has %d blocks of 64 tokens, input_length is %d", blocks, l.Input)
	}

	s := r.sessions[l.Session]
	if s == nil {
		s = &sessionState{}
		if len(l.runs) > 0 {
			s.begin = l.runs[0]
		}
		r.sessions[l.Session] = s
	} else if at < s.last {
		return fmt.Errorf("t_ms is %v, before that of the session's line before, %v", at, s.last)
	}
	q.Arrival, q.Think, q.Session, q.Turn = at, think, uint64(l.Session)+1, s.turn
	s.last = at
	s.turn++
	runs := cut(l.runs, l.Input/BlockTokens)
	if !separate {
		runs = r.shareHead(runs, s.begin, l.Shared)
	}
	q.Segments = r.segments(runs)
	return nil
}

// shareHead renumbers the leading blocks that a request has in common with its session's beginning, at most shared tokens,
// to those of all sessions with that many shared tokens.
func (r *Reader) shareHead(runs []Segment, begin Segment, shared int64) []Segment {
	if len(runs) == 0 || runs[0].First != begin.First {
		return runs
	}
	n := min(shared/BlockTokens, runs[0].Blocks, begin.Blocks)
	if n == 0 {
		return runs
	}
	head := Segment{First: mix64(r.base ^ mix64(uint64(shared))), Blocks: n}
	if n == runs[0].Blocks {
		runs[0] = head
		return runs
	}
	runs = append(runs, Segment{}) // in the line's own buffer
	copy(runs[1:], runs)
	runs[1].First += uint64(n)
	runs[1].Blocks -= n
	runs[0] = head
	r.sessionLine.runs = runs
	return runs
}

// azureHeader tells which of the headers line is.
func azureHeader(line []byte) (string, bool) {
	for _, h := range [...]string{headerMillis, headerDated} {
		if string(line) == h {
			return h, true
		}
	}
	return "", false
}

func (r *Reader) parseAzure(line []byte, q *Request) error {
	stamp, rest, ok := bytes.Cut(line, []byte{','})
	in, out, more := bytes.Cut(rest, []byte{','})
	if !ok || !more || bytes.IndexByte(out, ',') >= 0 {
		return fmt.Errorf("%d columns, there must be 3", 1+bytes.Count(line, []byte{','}))
	}
	at, err := r.azureTime(string(stamp))
	if err != nil {
		return err
	}
	input, err := strconv.ParseInt(string(in), 10, 64)
	if err != nil {
		return fmt.Errorf("input_length: %w", err)
	}
	output, err := strconv.ParseInt(string(out), 10, 64)
	if err != nil {
		return fmt.Errorf("output_length: %w", err)
	}
	if err := setLengths(q, input, output); err != nil {
		return err
	}
	if err := r.ordered(at, "timestamp"); err != nil {
		return err
	}
	q.Arrival = at
	if n := input / BlockTokens; n > 0 {
		q.Segments = r.segments([]Segment{{First: r.base + r.used, Blocks: n}})
		r.used += uint64(n) + 1
	}
	return nil
}

func (r *Reader) azureTime(stamp string) (time.Duration, error) {
	if !r.dated {
		ms, err := strconv.ParseFloat(stamp, 64)
		if err != nil {
			return 0, fmt.Errorf("timestamp: %w", err)
		}
		return millis("timestamp", ms)
	}
	t, err := time.Parse("2006-01-02 15:04:05", stamp)
	if err != nil {
		if t, err = time.Parse("2006-01-02 15:04:05Z07:00", stamp); err != nil {
			return 0, fmt.Errorf("timestamp: %w", err)
		}
	}
	if r.start.IsZero() {
		r.start = t
	}
	return millis("timestamp", float64(t.Sub(r.start))/1e6)
}

// millis converts a time in ms, rounded to ns.
func millis(field string, ms float64) (time.Duration, error) {
	switch {
	case math.IsNaN(ms):
		return 0, fmt.Errorf("%s is missing or not a number", field)
	case ms < 0 || ms > maxMillis:
		return 0, fmt.Errorf("%s is %v ms, it must be in [0, %v]", field, ms, maxMillis)
	}
	return time.Duration(math.Round(ms * 1e6)), nil
}

func setLengths(q *Request, input, output int64) error {
	switch {
	case input == absent:
		return errors.New("input_length is missing")
	case input < 1 || input > MaxTokens:
		return fmt.Errorf("input_length is %d, it must be in [1, 2147483647]", input)
	case output == absent:
		return errors.New("output_length is missing")
	case output < 0 || output > MaxTokens:
		return fmt.Errorf("output_length is %d, it must be in [0, 2147483647]", output)
	}
	q.PromptTokens, q.OutputTokens = input, max(1, output)
	return nil
}

// cut shortens runs to the first n blocks, in place.
func cut(runs []Segment, n int64) []Segment {
	for i := range runs {
		if runs[i].Blocks >= n {
			if n == 0 {
				return runs[:i]
			}
			runs[i].Blocks = n
			return runs[:i+1]
		}
		n -= runs[i].Blocks
	}
	return runs
}
