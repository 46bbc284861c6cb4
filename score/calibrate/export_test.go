package calibrate

import "github.com/isobar-go/isobar/score"

// NonNegative solves normal equations of p unknowns.
func NonNegative(a [4][4]float64, b [4]float64, p int) [4]float64 { return nonNegative(a, b, p) }

// Predict is what the package predicts for a request, ms.
func Predict(p score.Profile, load score.Load, prompt, cached, output float64) (first, completion float64) {
	u := &unit{profile: p.WithDefaults()}
	pt := pointOf(&sample{
		unit: u, prompt: prompt, cached: cached, pending: load.PendingPrefill, batch: load.Requests, kv: load.KV, tokens: output,
	}, 0)
	t := timingsOf(&u.profile)
	return pt.firstMS(&t), pt.completionMS(&t)
}

// Better is the rule by which a change of error counts as a gain.
func Better(o Options, gain, noise float64, e Errors) bool {
	o = o.WithDefaults()
	r := paired{Errors: e, gain: gain, noise: noise}
	return r.better(&o)
}
