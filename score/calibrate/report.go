package calibrate

import (
	"github.com/isobar-go/isobar/score"
)

// Report is what a calibration found. A Report is a plain value.
type Report struct {
	// Profiles are the profiles to adopt, by endpoint id: only of endpoints for which something is better than it was.
	Profiles map[string]score.Profile `json:"profiles"`
	// Receipts is the number of receipts that were added, Used that of those that count.
	Receipts int `json:"receipts"`
	Used     int `json:"used"`
	// Left is how many were left out and why, by reason.
	Left []LeftOut `json:"left,omitempty"`
	// Fits are those of the endpoints with one profile together, each followed by those of single endpoints.
	Fits []Fit `json:"fits"`
	// Residuals are those of the held-out half, in all and by class, size and endpoint.
	Residuals []Residual `json:"residuals"`
}

// LeftOut is a number of receipts that do not count. A LeftOut is a plain value.
type LeftOut struct {
	// Reason they have in common.
	Reason Left `json:"reason"`
	// Receipts is their number.
	Receipts int `json:"receipts"`
}

// Fit is what was found for the endpoints with one profile, or for one endpoint. Times are in ms. A Fit is a plain value.
type Fit struct {
	// Name is that of the profile if it is a published one, else "profile" and a number; of a single endpoint, its id.
	Name string `json:"name"`
	// Endpoints it is of, sorted. Kept are those of them that do not take it over, since it makes them worse.
	Endpoints []string `json:"endpoints"`
	Kept      []string `json:"kept,omitempty"`
	// Single says that it is of one endpoint on its own, drawn towards the profile that it would have else.
	Single bool `json:"single,omitempty"`
	// Old is the profile before, New the one that is adopted: where nothing is, the same.
	Old score.Profile `json:"old"`
	New score.Profile `json:"new"`
	// Receipts is how many it is of, Fitted and HeldOut how many of these are in the two halves.
	Receipts int `json:"receipts"`
	Fitted   int `json:"fitted"`
	HeldOut  int `json:"held_out"`
	// Prefill and Decode are what became of the two parts: PrefillToken and Attention, and Base, KVToken and Sequence.
	Prefill Verdict `json:"prefill"`
	Decode  Verdict `json:"decode"`
	// FirstToken and Completion are the errors of the held-out half, before and after what was adopted; where nothing was, after
	// what was found.
	FirstToken Errors `json:"first_token"`
	Completion Errors `json:"completion"`
	// Coefficients are the timings, in the order of the profile's fields.
	Coefficients []Coefficient `json:"coefficients,omitempty"`
	// Overhead is what every first token took beside all that depends on sizes: network, gateway, the end of a pass. It is part
	// of no profile.
	Overhead float64 `json:"overhead_ms"`
	// QueueToken is what a pending prompt token was found to cost, where that could be told apart; the cost model takes it to be
	// PrefillToken. It is lower where the number of pending tokens is overestimated.
	QueueToken float64 `json:"queue_ms_per_token"`
	// PromptRatio is the length of prompts by the engine's count over that by the router's; 0 = no engine tells. Far from
	// 1, the host's estimates are off, and the fit has them in its price of a token.
	PromptRatio float64 `json:"prompt_ratio,omitempty"`
}

// Errors are absolute differences between predictions and outcomes, ms. Predictions are made with the number of tokens that were
// really generated and the cached tokens that the engine really had, where it says so: they judge the profile, and not what was
// believed of a request. An Errors is a plain value.
type Errors struct {
	// Receipts they are of.
	Receipts int `json:"receipts"`
	// Before and After are means, MedianBefore and MedianAfter medians.
	Before       float64 `json:"mean_before"`
	After        float64 `json:"mean_after"`
	MedianBefore float64 `json:"median_before"`
	MedianAfter  float64 `json:"median_after"`
}

// Coefficient is one timing of a profile, ms. A Coefficient is a plain value.
type Coefficient struct {
	// Name is the field's in JSON.
	Name string `json:"name"`
	// Old is its value, New the one adopted, Fitted the one found.
	Old    float64 `json:"old"`
	New    float64 `json:"new"`
	Fitted float64 `json:"fitted"`
	// Low and High bound the 95 % confidence interval of what was found; both 0 where nothing was.
	Low  float64 `json:"low"`
	High float64 `json:"high"`
	// Verdict is why New is Old, or Adopted.
	Verdict Verdict `json:"verdict"`
}

// Residual are the errors of the receipts of one cohort, and how what was observed differs from what the profiles of the report
// predict. A Residual is a plain value.
type Residual struct {
	// By is what the cohort is of: all, class, size or endpoint; Value is which.
	By    string `json:"by"`
	Value string `json:"value"`
	// FirstToken and Completion are their errors.
	FirstToken Errors `json:"first_token"`
	Completion Errors `json:"completion"`
	// FirstTokenOff and CompletionOff are observed less predicted.
	FirstTokenOff Quantiles `json:"first_token_off"`
	CompletionOff Quantiles `json:"completion_off"`
}

// Quantiles are of residuals, ms: negative where the prediction was too long. A Quantiles is a plain value.
type Quantiles struct {
	// P10, P50, P90 and P99 are the shares below them, in percent.
	P10 float64 `json:"p10"`
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
}

// Adopted says whether there is anything to adopt.
func (r *Report) Adopted() bool { return len(r.Profiles) > 0 }
