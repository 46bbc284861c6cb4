package world

import (
	"math"
	"slices"
	"time"
)

// SLO is what a request must keep to count as good. A SLO is a plain value.
type SLO struct {
	// TTFT is the greatest time to the first token. Default 2 s.
	TTFT time.Duration
	// TPOT is the greatest mean time between tokens. Default 50 ms.
	TPOT time.Duration
}

// Dist is the distribution of a time, ms. All is 0 where N is. A Dist is a plain value.
type Dist struct {
	// N is the number of values.
	N int
	// Mean of them; P50, P90 and P99 are the values nearest to those ranks; Max is the greatest.
	Mean, P50, P90, P99, Max float64
}

// NewDist describes values and sorts them.
func NewDist(values []float64) Dist {
	if len(values) == 0 {
		return Dist{}
	}
	slices.Sort(values)
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	at := func(q float64) float64 { return values[int(math.Round(q*float64(len(values)-1)))] }
	return Dist{N: len(values), Mean: sum / float64(len(values)), P50: at(0.5), P90: at(0.9), P99: at(0.99), Max: values[len(values)-1]}
}

// Figures sum up a run, or some of its requests. A Figures is a plain value.
type Figures struct {
	// Requests is their number; the others are those that ended so.
	Requests, Finished, Rejected, Failed, GaveUp, Unfinished int
	// TTFT to the first token, TPOT between tokens, E2E to the last, of those that finished.
	TTFT, TPOT, E2E Dist
	// Goodput is the share of all requests that finished and kept the SLO, 0 to 1.
	Goodput float64
	// HitShare is the share of the prompt tokens of started requests that their engines had cached, 0 to 1; PredictedHitShare
	// the share that the choosers expected there.
	HitShare, PredictedHitShare float64
	// PromptTokens, CachedTokens and OutputTokens are sums: of started requests, of them cached, and delivered.
	PromptTokens, CachedTokens, OutputTokens int64
	// Preemptions; Retries is the number of tries beyond the first; ColdLoads of adapters; Deadlines and those Missed.
	Preemptions, Retries, ColdLoads, Deadlines, Missed int
	// Churn is the share of requests with an earlier one of their session that went to another engine than it, 0 to 1.
	Churn float64
	// Jain is the index of fairness over tenants (Jain, Chiu, Hawe 1984) of the speed each got, its tokens per second of its
	// requests' time: 1 = all the same, 1/n = one had all. 1 with fewer than two tenants.
	Jain float64
	// StartError is how far the predicted time to the first token was off, as an absolute value; StartBias the mean of predicted
	// less observed, ms. Of requests whose choice came with a prediction.
	StartError Dist
	StartBias  float64
	// Degraded is the number of choices on no telemetry at all.
	Degraded int
	// MaxWork is the greatest work of an engine over the mean, work being the time in passes: 1 = all the same. 0 where only some of the
	// requests are looked at.
	MaxWork float64
}

// Figures sums up the whole run.
func (r *Result) Figures(slo SLO) Figures {
	f := Summarize(r.Records, slo, nil)
	sum, most := 0.0, 0.0
	for _, e := range r.Engines {
		sum += float64(e.Busy)
		most = max(most, float64(e.Busy))
	}
	if sum > 0 {
		f.MaxWork = most * float64(len(r.Engines)) / sum
	}
	return f
}

// Summarize sums up the records that keep returns true for; nil = all. For churn, records must be in the order of arrival.
func Summarize(records []Record, slo SLO, keep func(*Record) bool) Figures {
	orDefault(&slo.TTFT, 2*time.Second)
	orDefault(&slo.TPOT, 50*time.Millisecond)
	s := summary{slo: slo, last: map[string]int{}, tenants: map[string]int{}}
	for i := range records {
		if r := &records[i]; keep == nil || keep(r) {
			s.add(r)
		}
	}
	return s.figures()
}

// summary gathers what Figures are made of.
type summary struct {
	slo              SLO
	f                Figures
	ttft, tpot, e2e  []float64
	errors           []float64
	bias             float64
	good             int
	predicted        int64
	last             map[string]int // engine of the session's last request
	returns, changes int
	tenants          map[string]int // place in service, in the order of appearance
	service          []service
}

// service is what a tenant got.
type service struct{ tokens, seconds float64 }

func milli(d time.Duration) float64 { return float64(d) / 1e6 }

func (s *summary) add(r *Record) {
	f := &s.f
	f.Requests++
	switch r.Outcome {
	case Finished:
		f.Finished++
		s.finished(r)
	case Rejected:
		f.Rejected++
	case Failed:
		f.Failed++
	case GaveUp:
		f.GaveUp++
	default:
		f.Unfinished++
	}
	if r.Start >= 0 {
		f.PromptTokens += r.PromptTokens
		f.CachedTokens += r.Cached
		s.predicted += min(r.PredictedCached, r.PromptTokens)
	}
	f.Preemptions += r.Preemptions
	f.Retries += max(r.Attempts-1, 0)
	f.ColdLoads += count(r.ColdLoad)
	f.Deadlines += count(r.Deadline > 0)
	f.Missed += count(r.Late())
	f.Degraded += count(r.Degraded)
	if r.Session != "" && r.Engine >= 0 {
		if before, known := s.last[r.Session]; known {
			s.returns++
			s.changes += count(before != r.Engine)
		}
		s.last[r.Session] = r.Engine
	}
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (s *summary) finished(r *Record) {
	ttft, _ := r.TTFT()
	e2e, _ := r.E2E()
	tpot, several := r.TPOT()
	s.ttft, s.e2e = append(s.ttft, milli(ttft)), append(s.e2e, milli(e2e))
	if several {
		s.tpot = append(s.tpot, milli(tpot))
	}
	s.good += count(ttft <= max(s.slo.TTFT, 0) && tpot <= max(s.slo.TPOT, 0))
	s.f.OutputTokens += r.OutputTokens
	if start := r.Terms.Start(); start > 0 {
		off := start - milli(r.FirstToken-r.Sent)
		s.bias += off
		s.errors = append(s.errors, math.Abs(off))
	}
	at, known := s.tenants[r.Tenant]
	if !known {
		at = len(s.service)
		s.tenants[r.Tenant] = at
		s.service = append(s.service, service{})
	}
	s.service[at].tokens += float64(r.OutputTokens)
	s.service[at].seconds += e2e.Seconds()
}

func (s *summary) figures() Figures {
	f := s.f
	n := len(s.errors)
	f.TTFT, f.TPOT, f.E2E, f.StartError = NewDist(s.ttft), NewDist(s.tpot), NewDist(s.e2e), NewDist(s.errors)
	f.Goodput = share(float64(s.good), float64(f.Requests))
	f.HitShare = share(float64(f.CachedTokens), float64(f.PromptTokens))
	f.PredictedHitShare = share(float64(s.predicted), float64(f.PromptTokens))
	f.Churn = share(float64(s.changes), float64(s.returns))
	f.StartBias = share(s.bias, float64(n))
	sum, squares := 0.0, 0.0
	for _, t := range s.service {
		speed := share(t.tokens, t.seconds)
		sum += speed
		squares += speed * speed
	}
	f.Jain = 1
	if len(s.service) > 1 && squares > 0 {
		f.Jain = sum * sum / (float64(len(s.service)) * squares)
	}
	return f
}

func share(part, whole float64) float64 {
	if whole == 0 {
		return 0
	}
	return part / whole
}
