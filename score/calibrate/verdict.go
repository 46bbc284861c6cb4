package calibrate

import "fmt"

// Verdict says what became of a fit, or why a coefficient keeps its value. The zero value is that it was adopted.
type Verdict uint8

const (
	// Adopted: it lowers the error of receipts that it was not made from.
	Adopted Verdict = iota
	// TooFew: there are too few receipts.
	TooFew
	// NoGain: it does not lower the error by more than chance could and more than matters.
	NoGain
	// Unstable: it does for one split of the receipts into halves, but not for most.
	Unstable
	// Collinear: the receipts cannot tell the coefficient apart from others, for instance since all sizes are equal.
	Collinear
	// Uncertain: they tell too little of it.
	Uncertain
)

var verdictNames = [...]string{
	Adopted: "adopted", TooFew: "too-few", NoGain: "no-gain", Unstable: "unstable", Collinear: "collinear", Uncertain: "uncertain",
}

// String is the name of the verdict in reports.
func (v Verdict) String() string {
	if int(v) < len(verdictNames) {
		return verdictNames[v]
	}
	return "unknown"
}

// MarshalText writes the name.
func (v Verdict) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText reads a name; an unknown one is an error that carries it.
func (v *Verdict) UnmarshalText(text []byte) error {
	for i, name := range verdictNames {
		if name == string(text) {
			*v = Verdict(i)
			return nil
		}
	}
	return fmt.Errorf("calibrate: verdict %q is unknown", text)
}
