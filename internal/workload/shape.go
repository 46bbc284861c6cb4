package workload

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"
)

// Starts say when sessions begin. It is a plain value.
type Starts struct {
	// Rate is the number of sessions that begin in a second, as a Poisson process; above 0.
	Rate float64
	// Seed of the process.
	Seed uint64
	// Shuffle lets the sessions begin in a seeded random order instead of that in which they appear.
	Shuffle bool
}

// StartSessions sets the begin of every session; later requests keep their distance to it. The result is in order of
// arrival: an Open source plays it as an open loop, a Loop as a closed one. Requests without a session stay where they are.
func StartSessions(w Workload, s Starts) (Workload, error) {
	if !(s.Rate > 0) || math.IsInf(s.Rate, 1) {
		return nil, fmt.Errorf("workload: Rate is %v, it must be above 0 and finite", s.Rate)
	}
	first := map[uint64]time.Duration{}
	var order []uint64
	for i := range w {
		r := &w[i]
		at, known := first[r.Session]
		if r.Session == 0 {
			continue
		}
		if !known {
			order = append(order, r.Session)
		}
		if !known || r.Arrival < at {
			first[r.Session] = r.Arrival
		}
	}
	if s.Shuffle {
		newRand(s.Seed, "session order").Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	}
	rnd := newRand(s.Seed, "session starts")
	shift := make(map[uint64]time.Duration, len(order))
	at := time.Duration(0)
	for _, session := range order {
		at += exponential(rnd, s.Rate)
		if at < 0 || at > maxMillis*1e6 {
			return nil, fmt.Errorf("workload: Rate is %v: sessions would begin after more than 100 years", s.Rate)
		}
		shift[session] = at - first[session]
	}
	out := slices.Clone(w)
	for i := range out {
		out[i].Arrival += shift[out[i].Session]
	}
	slices.SortStableFunc(out, byArrival)
	return out, nil
}

// Rearrive replaces the arrivals by a renewal process of the same order: gaps are Gamma distributed with the mean 1/rate and
// the coefficient of variation cv, so that cv 1 is Poisson, 0 a clock, 2 and more are bursts. rate is per second and above
// 0, cv is in [0, 10]. w must not have sessions, and is taken in order of arrival.
func Rearrive(w Workload, rate, cv float64, seed uint64) (Workload, error) {
	if !(rate > 0) || math.IsInf(rate, 1) {
		return nil, fmt.Errorf("workload: rate is %v, it must be above 0 and finite", rate)
	}
	if !(cv >= 0 && cv <= 10) {
		return nil, fmt.Errorf("workload: cv is %v, it must be in [0, 10]", cv)
	}
	rnd := newRand(seed, "rearrive")
	out := slices.Clone(w.sorted())
	at := 0.0
	for i := range out {
		r := &out[i]
		if r.Session != 0 {
			return nil, fmt.Errorf("workload: request %d has a session, its arrival belongs to it", r.ID)
		}
		gap := 1 / rate
		if cv > 0 {
			// Of Gamma(k, theta) the mean is k theta and the variation 1/sqrt(k).
			gap = gamma(rnd, 1/(cv*cv)) * cv * cv / rate
		}
		if at += gap; at*1000 > maxMillis {
			return nil, fmt.Errorf("workload: rate is %v: request %d would arrive after more than 100 years", rate, r.ID)
		}
		r.Arrival = toDuration(at)
	}
	return out, nil
}

// Guess says what clients know of their outputs. It is a plain value.
type Guess struct {
	// Max is the MaxOutputTokens of every request, or its OutputTokens where that is more; at least 0, 0 = none.
	Max int64
	// Bias is the median of guess over truth, above 0; 0 = no guesses.
	Bias float64
	// Sigma is the standard deviation of the natural logarithm of guess over truth, 0 to 4: 0.7 is wrong by a factor of 2
	// about every third time.
	Sigma float64
	// Share is the share of requests with a guess, 0 to 1; 0 = all.
	Share float64
	// Seed of the guesses.
	Seed uint64
}

// Estimates sets MaxOutputTokens and ExpectedOutputTokens: truth x Bias x exp(Sigma x normal), at least 1 and at most
// MaxOutputTokens.
func Estimates(w Workload, g Guess) (Workload, error) {
	switch {
	case g.Max < 0 || g.Max > MaxTokens:
		return nil, fmt.Errorf("workload: Max is %d, it must be in [0, 2147483647]", g.Max)
	case !(g.Bias >= 0) || math.IsInf(g.Bias, 1):
		return nil, fmt.Errorf("workload: Bias is %v, it must be at least 0 and finite", g.Bias)
	case !(g.Sigma >= 0 && g.Sigma <= 4):
		return nil, fmt.Errorf("workload: Sigma is %v, it must be in [0, 4]", g.Sigma)
	case !(g.Share >= 0 && g.Share <= 1):
		return nil, fmt.Errorf("workload: Share is %v, it must be in [0, 1]", g.Share)
	}
	rnd := newRand(g.Seed, "estimates")
	out := slices.Clone(w)
	for i := range out {
		r := &out[i]
		r.MaxOutputTokens, r.ExpectedOutputTokens = 0, 0
		limit := float64(MaxTokens)
		if g.Max > 0 {
			r.MaxOutputTokens = max(g.Max, r.OutputTokens)
			limit = float64(r.MaxOutputTokens)
		}
		u, z := rnd.Float64(), rnd.NormFloat64()
		if g.Bias > 0 && (g.Share == 0 || u < g.Share) {
			guess := float64(r.OutputTokens) * g.Bias * math.Exp(g.Sigma*z)
			r.ExpectedOutputTokens = int64(math.Round(min(max(guess, 1), limit)))
		}
	}
	return out, nil
}

// Tenants spreads requests over n tenants, "tenant-0" and so on, in [1, 1e6]: tenant k gets a share in proportion to
// 1/(k+1)^zipf, zipf in [0, 10], in random order. The requests of a session have one tenant.
func Tenants(w Workload, n int, zipf float64, seed uint64) (Workload, error) {
	if n < 1 || n > 1e6 {
		return nil, fmt.Errorf("workload: n is %d, it must be in [1, 1000000]", n)
	}
	if !(zipf >= 0 && zipf <= 10) {
		return nil, fmt.Errorf("workload: zipf is %v, it must be in [0, 10]", zipf)
	}
	names := make([]string, n)
	for k := range names {
		names[k] = "tenant-" + strconv.Itoa(k)
	}
	rnd := newRand(seed, "tenants")
	p := zipfShares(n, zipf)
	ofSession := map[uint64]string{}
	out := slices.Clone(w)
	for i := range out {
		r := &out[i]
		name, ok := ofSession[r.Session]
		if !ok || r.Session == 0 {
			name = names[p.draw(rnd)]
			ofSession[r.Session] = name
		}
		r.Tenant = name
	}
	return out, nil
}
