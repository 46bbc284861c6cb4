package experiment

import (
	"math"
	"slices"
	"time"
)

// Roles say which policy is what in a comparison. A Roles is a plain value.
type Roles struct {
	// Candidate is the policy that is to be held against the others.
	Candidate string
	// Baselines are the others. Of each figure the best of them counts, whichever it is there.
	Baselines []string
	// OwnOnly are those of them that know their gateway's own requests alone and read no telemetry.
	OwnOnly []string
	// Shared says in which workloads prefixes are heavily shared.
	Shared func(workload string) bool
}

// Criterion is one thing asked of the candidate. A Criterion is a plain value.
type Criterion struct {
	// Key names it in files, Text for people.
	Key, Text string
	// Bound is the greatest value that holds: by what share the candidate may be worse, negative = must be better.
	Bound float64
}

// Verdict is a criterion at one place of the grid. A Verdict is a plain value.
type Verdict struct {
	Criterion
	// Group is the place.
	Group Group
	// Against is the policy or place that it is compared with.
	Against string
	// Value is by what share the candidate is worse there: of goodput and hit share, of 1 and of the other's.
	Value float64
	// Half is the half width of the 95 % confidence interval of the value, seed by seed; 0 where it can not be told.
	Half float64
	// Holds says that the value is within the bound.
	Holds bool
}

// Judgement sums up the verdicts on one criterion. A Judgement is a plain value.
type Judgement struct {
	Criterion
	// Places is at how many it was looked, Holding at how many it holds; it passes if that is all of them, at least one.
	Places, Holding int
	// Worst is the verdict with the greatest value.
	Worst Verdict
}

// Passes says that the criterion holds wherever it was looked at, and was looked at.
func (j *Judgement) Passes() bool { return j.Places > 0 && j.Holding == j.Places }

// relation says how the candidate's figure is compared.
type relation uint8

const (
	asShare relation = iota // (candidate - other) / other, lower is better
	asGap                   // other - candidate, higher is better
	asLoss                  // 1 - candidate / other, higher is better
)

// rule is a criterion with what it is about.
type rule struct {
	Criterion
	metric  string
	how     relation
	applies func(r *Roles, g Group) bool
	others  func(r *Roles) []string
}

const (
	fresh = 100 * time.Millisecond // polls that often show the present, nearly
	slack = 1e-9                   // of comparisons, for what arithmetic leaves over
)

// rules are those against other policies.
func rules() []rule {
	always := func(*Roles, Group) bool { return true }
	busy := func(g Group) bool { return g.Load >= 0.8-slack && g.Load <= 1.1+slack }
	baselines := func(r *Roles) []string { return r.Baselines }
	own := func(r *Roles) []string { return r.OwnOnly }
	list := []rule{}
	add := func(key, text string, bound float64, metric string, how relation, applies func(*Roles, Group) bool, others func(*Roles) []string) {
		list = append(list, rule{Criterion{key, text, bound}, metric, how, applies, others})
	}
	add("ttft-mean", "TTFT mean at most 3 % worse than the best", 0.03, "ttft_mean", asShare, always, baselines)
	add("ttft-p50", "TTFT p50 at most 3 % worse than the best", 0.03, "ttft_p50", asShare, always, baselines)
	add("ttft-p99", "TTFT p99 at most 3 % worse than the best", 0.03, "ttft_p99", asShare, always, baselines)
	add("e2e-mean", "E2E mean never worse than the best", 0, "e2e_mean", asShare, always, baselines)
	add("goodput", "goodput never worse than the best", 0, "goodput", asGap, always, baselines)
	add("e2e-busy", "E2E mean at least 10 % better at 80 to 110 % load", -0.10, "e2e_mean", asShare,
		func(_ *Roles, g Group) bool { return busy(g) }, baselines)
	add("ttft-shared", "TTFT mean at least 25 % better at 80 to 110 % load where prefixes are heavily shared", -0.25, "ttft_mean", asShare,
		func(r *Roles, g Group) bool { return busy(g) && r.Shared != nil && r.Shared(g.Workload) }, baselines)
	add("hit", "prefix hit share within 10 % of the best", 0.10, "hit", asLoss, always, baselines)
	add("gateways-fresh", "4 gateways, polls every 100 ms: TTFT mean at least 30 % better than on own requests alone", -0.30,
		"ttft_mean", asShare, func(_ *Roles, g Group) bool { return g.Gateways == 4 && g.Period <= fresh }, own)
	add("gateways-old", "4 gateways, polls every second or more: TTFT mean never worse than on own requests alone", 0,
		"ttft_mean", asShare, func(_ *Roles, g Group) bool { return g.Gateways == 4 && g.Period >= time.Second }, own)
	return list
}

var (
	choiceRule = [...]Criterion{{"choice-regret", "regret of choices to the oracle at most 5 %, polls every 100 ms, one gateway", 0.05}}
	regretRule = [...]Criterion{{"regret", "E2E mean at most 5 % above the oracle's, polls every 100 ms, one gateway", 0.05}}
	agingRule  = [...]Criterion{{"aging", "one gateway: TTFT p99 with polls every second at most 25 % above that with 100 ms", 0.25}}
)

// Criteria lists what Accept looks at.
func Criteria() []Criterion {
	var list []Criterion
	for _, r := range rules() {
		list = append(list, r.Criterion)
	}
	return append(list, regretRule[0], choiceRule[0], agingRule[0])
}

// Accept holds the candidate against the others, place by place, in the order of the criteria and of the rows. Rows about a
// single class are not looked at. A criterion that needs what the grid does not have gives no verdict.
func Accept(rows []Row, roles Roles) []Verdict {
	var groups []Group
	at := map[Group]map[string]*Row{}
	for i := range rows {
		r := &rows[i]
		if r.Class != "" {
			continue
		}
		if at[r.Group] == nil {
			at[r.Group] = map[string]*Row{}
			groups = append(groups, r.Group)
		}
		at[r.Group][r.Policy] = r
	}
	var out []Verdict
	for _, rule := range rules() {
		for _, g := range groups {
			own := at[g][roles.Candidate]
			if own == nil || !rule.applies(&roles, g) {
				continue
			}
			if best := bestOf(at[g], rule.others(&roles), rule.metric, rule.how); best != nil {
				out = append(out, rule.verdict(own, best, best.Policy))
			}
		}
	}
	for _, rule := range []struct {
		Criterion
		of func(*Row) Stat
	}{{regretRule[0], func(r *Row) Stat { return r.Regret }}, {choiceRule[0], func(r *Row) Stat { return r.ChoiceRegret }}} {
		for _, g := range groups {
			own := at[g][roles.Candidate]
			if own == nil || rule.of(own).N == 0 || g.Gateways != 1 || g.Period > fresh {
				continue
			}
			s := rule.of(own)
			v := Verdict{Criterion: rule.Criterion, Group: g, Against: Oracle, Value: s.Mean, Half: s.Half}
			v.Holds = v.Value <= v.Bound+slack
			out = append(out, v)
		}
	}
	for _, g := range groups {
		now := g
		now.Period = fresh
		own, base := at[g][roles.Candidate], at[now][roles.Candidate]
		if own != nil && base != nil && g.Gateways == 1 && g.Period == time.Second {
			out = append(out, rule{Criterion: agingRule[0], metric: "ttft_p99", how: asShare}.verdict(own, base, "polls every 100 ms"))
		}
	}
	return out
}

// bestOf is the row of those policies with the best mean; nil if none is there.
func bestOf(rows map[string]*Row, names []string, metric string, how relation) *Row {
	var best *Row
	i := metricAt(metric)
	for _, name := range names {
		r := rows[name]
		if r == nil {
			continue
		}
		if best == nil || (how == asShare) == (r.Stats[i].Mean < best.Stats[i].Mean) && r.Stats[i].Mean != best.Stats[i].Mean {
			best = r
		}
	}
	return best
}

func (r rule) verdict(own, other *Row, against string) Verdict {
	i := metricAt(r.metric)
	v := Verdict{Criterion: r.Criterion, Group: own.Group, Against: against, Value: r.how.of(own.Stats[i].Mean, other.Stats[i].Mean)}
	var each []float64
	for k, seed := range own.Seeds {
		if j := slices.Index(other.Seeds, seed); j >= 0 {
			each = append(each, r.how.of(own.Values[i][k], other.Values[i][j]))
		}
	}
	v.Half = NewStat(each).Half
	v.Holds = v.Value <= v.Bound+slack
	return v
}

// of is by what share own is worse than other. Where other is 0, what is worse than it is worse by 1.
func (h relation) of(own, other float64) float64 {
	switch {
	case h == asGap:
		return other - own
	case other == 0 && own == 0, other == 0 && h == asLoss:
		return 0
	case other == 0:
		return 1
	case h == asLoss:
		return 1 - own/other
	}
	return own/other - 1
}

// Judge sums up verdicts by criterion, in the order of Criteria, those that were never looked at included.
func Judge(verdicts []Verdict) []Judgement {
	var out []Judgement
	for _, c := range Criteria() {
		j := Judgement{Criterion: c, Worst: Verdict{Criterion: c, Value: math.Inf(-1)}}
		for _, v := range verdicts {
			if v.Key != c.Key {
				continue
			}
			j.Places++
			if v.Holds {
				j.Holding++
			}
			if v.Value > j.Worst.Value {
				j.Worst = v
			}
		}
		if j.Places == 0 {
			j.Worst.Value = 0
		}
		out = append(out, j)
	}
	return out
}
