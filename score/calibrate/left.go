package calibrate

import "fmt"

// Left says why a receipt was left out; the zero value is that it was not.
type Left uint8

const (
	// Kept: it counts.
	Kept Left = iota
	// NotEnded: a rejection, or written at the decision without an outcome.
	NotEnded
	// NotCompleted: it failed, was cancelled or refused, so that its times are not those of the work.
	NotCompleted
	// NoCandidate: the receipt does not hold what was known of the chosen endpoint, or not its profile.
	NoCandidate
	// Probe: the request was to find out whether the endpoint works; what was known of its load is not believed.
	Probe
	// NoSize: the length of the prompt was not known.
	NoSize
	// NoFirstToken: the host did not say when the first token came, as for an answer that is not streamed.
	NoFirstToken
	// ColdAdapter: an adapter may have had to be loaded first, which takes a time of its own.
	ColdAdapter
	// FullEngine: it ran as many requests as it could, so that the time to the first token was that until one of them ended.
	FullEngine
	// SilentEngine: it had given no sign of life for longer than usual; see [score.Load].Silence.
	SilentEngine
	// BadFigures: a figure is negative, too large, or out of the order of time.
	BadFigures
	// LoadUnknown: the readings behind the load were stale or missing; see [Options].LoadUnknown.
	LoadUnknown
	// Displaced: newer receipts have taken its place; see [Calibrator].Keep.
	Displaced

	leftReasons
)

var leftNames = [...]string{
	Kept: "", NotEnded: "not-ended", NotCompleted: "not-completed", NoCandidate: "no-candidate", Probe: "probe", NoSize: "no-size",
	NoFirstToken: "no-first-token", ColdAdapter: "cold-adapter", FullEngine: "full-engine", SilentEngine: "silent-engine",
	BadFigures: "bad-figures", LoadUnknown: "load-unknown", Displaced: "displaced",
}

// String is the name of the reason in reports; empty for Kept.
func (l Left) String() string {
	if int(l) < len(leftNames) {
		return leftNames[l]
	}
	return "unknown"
}

// MarshalText writes the name.
func (l Left) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText reads a name; an unknown one is an error that carries it.
func (l *Left) UnmarshalText(text []byte) error {
	for i, name := range leftNames {
		if name == string(text) {
			*l = Left(i)
			return nil
		}
	}
	return fmt.Errorf("calibrate: reason %q is unknown", text)
}
