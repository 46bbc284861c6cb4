package calibrate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"gonum.org/v1/gonum/stat"

	"github.com/isobar-go/isobar/score"
)

// Fit fits profiles to the receipts so far and forgets none of them. What it adopts has lowered the error of predictions for
// receipts that it was not made from; where there is nothing of that kind the report says why. The error names options that are out of
// range.
func (c *Calibrator) Fit(o Options) (Report, error) {
	if err := o.Validate(); err != nil {
		return Report{}, err
	}
	o = o.WithDefaults()
	f := c.frame(&o)
	r := Report{Profiles: map[string]score.Profile{}, Receipts: f.added, Used: len(f.points), Left: f.leftOut()}
	for n, cohort := range f.cohorts() {
		r.Fits = append(r.Fits, f.fitCohort(n+1, cohort)...)
	}
	for _, u := range f.units {
		if u.current && u.now != u.old {
			r.Profiles[u.endpoint] = u.now.with(u.profile)
		}
	}
	r.Residuals = f.residuals()
	return r, nil
}

// frame is what a calibrator knew at one moment.
type frame struct {
	o      *Options
	points []point
	units  []unitView
	added  int
	left   [leftReasons]int
}

// unitView is a unit and what becomes of it.
type unitView struct {
	unit
	current  bool // the newest life of its endpoint
	old, now timings
}

// frame copies what there is, oldest first.
func (c *Calibrator) frame(o *Options) *frame {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := &frame{o: o, added: c.added, left: c.left, points: make([]point, 0, len(c.samples))}
	newest := map[string]*unit{}
	for _, u := range c.units {
		if n := newest[u.endpoint]; n == nil || cmp.Or(u.at.Compare(n.at), cmp.Compare(u.incarnation, n.incarnation)) > 0 {
			newest[u.endpoint] = u
		}
	}
	number := make(map[*unit]int, len(c.units))
	for _, u := range slices.SortedFunc(maps.Values(c.units), func(a, b *unit) int {
		return cmp.Or(cmp.Compare(a.endpoint, b.endpoint), cmp.Compare(a.incarnation, b.incarnation))
	}) {
		number[u] = len(f.units)
		t := timingsOf(&u.profile)
		f.units = append(f.units, unitView{unit: *u, current: newest[u.endpoint] == u, old: t, now: t})
	}
	for i := range c.samples {
		s := &c.samples[(c.next+i)%len(c.samples)]
		if !s.loadKnown && !o.LoadUnknown {
			f.left[LoadUnknown]++
			continue
		}
		f.points = append(f.points, pointOf(s, number[s.unit]))
	}
	return f
}

func (f *frame) leftOut() []LeftOut {
	var out []LeftOut
	for why, n := range f.left {
		if n > 0 {
			out = append(out, LeftOut{Left(why), n})
		}
	}
	return out
}

// cohort are the units with one profile, by number, and their points.
type cohort struct {
	units  []int
	points []point
}

// cohorts are in the order of their first endpoints. Those of which no endpoint is left are not looked at.
func (f *frame) cohorts() []cohort {
	var out []cohort
	of := map[score.Profile]int{}
	for i := range f.units {
		p := f.units[i].profile
		at, known := of[p]
		if !known {
			at = len(out)
			of[p] = at
			out = append(out, cohort{})
		}
		out[at].units = append(out[at].units, i)
	}
	for _, p := range f.points {
		at := of[f.units[p.unit].profile]
		out[at].points = append(out[at].points, p)
	}
	return slices.DeleteFunc(out, func(c cohort) bool {
		return !slices.ContainsFunc(c.units, func(u int) bool { return f.units[u].current })
	})
}

// fitCohort fits the cohort, and then its endpoints on top of that.
func (f *frame) fitCohort(number int, c cohort) []Fit {
	first := &f.units[c.units[0]]
	t, fit := f.judge(c.points, first.old, f.o.MinReceipts, 0)
	fit.Name = nameOf(number, &first.profile)
	fit.Old, fit.New = first.profile, t.with(first.profile)
	changed := t != first.old
	fits := []Fit{fit}
	for _, u := range c.units {
		unit := &f.units[u]
		if !unit.current {
			continue
		}
		fits[0].Endpoints = append(fits[0].Endpoints, unit.endpoint)
		var own []point
		for _, p := range c.points {
			if p.unit == u {
				own = append(own, p)
			}
		}
		if changed {
			_, held := f.halves(own, 0)
			one, all := compareBoth(held, &unit.old, &t)
			if one.worse(f.o) || all.worse(f.o) {
				fits[0].Kept = append(fits[0].Kept, unit.endpoint)
			} else {
				unit.now = t
			}
		}
		if f.o.MinEndpoint == None || len(own) < f.o.MinEndpoint || len(own) == len(c.points) {
			continue
		}
		before := unit.now
		mine, fit := f.judge(own, before, f.o.MinEndpoint, max(f.o.Shrink, 0))
		unit.now = mine
		fit.Name, fit.Single, fit.Endpoints = unit.endpoint, true, []string{unit.endpoint}
		fit.Old, fit.New = before.with(unit.profile), mine.with(unit.profile)
		fits = append(fits, fit)
	}
	return fits
}

func nameOf(number int, p *score.Profile) string {
	for _, name := range score.ProfileNames() {
		if known, err := score.ProfileByName(name); err == nil && timingsOf(&known) == timingsOf(p) {
			return name
		}
	}
	return "profile " + strconv.Itoa(number)
}

// halves splits points by lot, always the same for a seed and a number.
func (f *frame) halves(points []point, split int) (train, held []point) {
	lot := mix(f.o.Seed ^ mix(uint64(split)))
	for _, p := range points {
		if mix(p.hash^lot)&1 == 0 {
			train = append(train, p)
		} else {
			held = append(held, p)
		}
	}
	return train, held
}

// proposal is which parts of a fit are taken.
type proposal struct{ prefill, decode bool }

func (p proposal) take(old, a, b *timings) timings {
	t := *old
	if p.prefill {
		t[prefill], t[attention] = a[prefill], a[attention]
	}
	if p.decode {
		t[base], t[kv], t[sequence] = b[base], b[kv], b[sequence]
	}
	return t
}

// judge fits one half of the points, tries what it found on the other, and returns what is adopted.
func (f *frame) judge(points []point, old timings, enough, shrink int) (timings, Fit) {
	train, held := f.halves(points, 0)
	fit := Fit{Receipts: len(points), Fitted: len(train), HeldOut: len(held), PromptRatio: promptRatio(points)}
	if len(points) < enough || len(train) < least/4 || len(held) < least/4 {
		fit.Prefill, fit.Decode = TooFew, TooFew
		one, all := compareBoth(held, &old, &old)
		fit.FirstToken, fit.Completion = one.Errors, all.Errors
		return old, fit
	}
	a, b := fitPrefill(train, old, shrink), fitDecode(train, old, shrink)
	fit.Overhead, fit.QueueToken = a.nuisance[0], a.nuisance[3]
	fit.Prefill, fit.Decode = NoGain, NoGain
	if a.free == 0 {
		fit.Prefill = max(a.kept[prefill], a.kept[attention])
	}
	decodes := 0
	for i := range points {
		if points[i].tokens >= 2 {
			decodes++
		}
	}
	switch {
	case decodes < enough:
		fit.Decode, b = TooFew, found{timings: old}
	case b.free == 0:
		fit.Decode = max(b.kept[base], b.kept[kv], b.kept[sequence])
	}
	chosen, ok := f.choose(held, &old, &a, &b)
	if ok {
		ok = f.stable(points, old, shrink, chosen)
		for _, part := range []struct {
			taken   bool
			verdict *Verdict
		}{{chosen.prefill, &fit.Prefill}, {chosen.decode, &fit.Decode}} {
			if part.taken && ok {
				*part.verdict = Adopted
			} else if part.taken {
				*part.verdict = Unstable
			}
		}
	}
	now, tried := old, proposal{prefill: true, decode: true}.take(&old, &a.timings, &b.timings)
	if ok {
		now = chosen.take(&old, &a.timings, &b.timings)
		tried = now
	}
	one, all := compareBoth(held, &old, &tried)
	fit.FirstToken, fit.Completion = one.Errors, all.Errors
	fit.Coefficients = coefficients(&old, &now, &a, &b, &fit)
	return now, fit
}

// choose finds out which parts lower the error of the held-out half: the prefill that of first tokens, the decode that of
// completions, measured with the prefill that is taken. Neither may raise the other's. An error of one part may have made up for
// one of the other, so that completions are looked at once both are in place.
func (f *frame) choose(held []point, old *timings, a, b *found) (proposal, bool) {
	if part := (proposal{prefill: true}); a.free > 0 {
		t := part.take(old, &a.timings, &b.timings)
		first, completion := compareBoth(held, old, &t)
		if first.better(f.o) {
			both := proposal{prefill: true, decode: true}
			u := both.take(old, &a.timings, &b.timings)
			_, more := compareBoth(held, &t, &u)
			_, all := compareBoth(held, old, &u)
			if b.free > 0 && more.better(f.o) && !all.worse(f.o) {
				return both, true
			}
			if !completion.worse(f.o) {
				return part, true
			}
		}
	}
	part := proposal{decode: true}
	t := part.take(old, &a.timings, &b.timings)
	_, completion := compareBoth(held, old, &t)
	return part, b.free > 0 && completion.better(f.o)
}

// stable says that the same parts, fitted to other halves, improve what they should in four splits of five.
func (f *frame) stable(points []point, old timings, shrink int, parts proposal) bool {
	good := 1 // the first split
	for split := 1; split < f.o.Splits; split++ {
		train, held := f.halves(points, split)
		now, improved := old, true
		if parts.prefill {
			a := fitPrefill(train, old, shrink)
			now = proposal{prefill: true}.take(&old, &a.timings, &old)
			first, _ := compareBoth(held, &old, &now)
			improved = first.gain > 0
		}
		if parts.decode {
			b := fitDecode(train, old, shrink)
			both := proposal{decode: true}.take(&now, &old, &b.timings)
			_, completion := compareBoth(held, &now, &both)
			improved = improved && completion.gain > 0
		}
		if improved {
			good++
		}
	}
	return 5*good >= 4*f.o.Splits
}

// timingNames are those of the profile in JSON, in the order of its fields.
var timingNames = [...]string{
	base: "base_ms", prefill: "prefill_ms_per_token", kv: "kv_ms_per_token", attention: "attention_ms_per_token_ctx",
	sequence: "sequence_ms",
}

func coefficients(old, now *timings, a, b *found, fit *Fit) []Coefficient {
	const z = 1.96 // 95 % of a normal distribution
	var out []Coefficient
	for i, name := range timingNames {
		from, part := b, fit.Decode
		if i == prefill || i == attention {
			from, part = a, fit.Prefill
		}
		c := Coefficient{Name: name, Old: old[i], New: now[i], Fitted: from.timings[i], Verdict: part}
		switch {
		case from.kept[i] != Adopted:
			c.Verdict = from.kept[i]
		case from.se[i] > 0:
			c.Low, c.High = max(0, c.Fitted-z*from.se[i]), c.Fitted+z*from.se[i]
		}
		out = append(out, c)
	}
	return out
}

func promptRatio(points []point) float64 {
	engine, router := 0.0, 0.0
	for i := range points {
		if p := &points[i]; p.used > 0 {
			engine += p.used
			router += p.prompt
		}
	}
	if router == 0 {
		return 0
	}
	return engine / router
}

// residuals describes the held-out half, cohort by cohort. Endpoints of former lives count with what their profile was.
func (f *frame) residuals() []Residual {
	_, held := f.halves(f.points, 0)
	type key struct {
		by, value string
		order     int64
	}
	groups := map[key][]point{}
	for _, p := range held {
		for _, k := range []key{
			{"all", "", 0}, {"class", p.class.String(), 1}, {"size", fmt.Sprint(p.bucket), 2 + p.bucket},
			{"endpoint", f.units[p.unit].endpoint, most},
		} {
			groups[k] = append(groups[k], p)
		}
	}
	keys := slices.SortedFunc(maps.Keys(groups), func(a, b key) int {
		return cmp.Or(cmp.Compare(a.order, b.order), cmp.Compare(a.value, b.value))
	})
	var out []Residual
	for _, k := range keys {
		out = append(out, f.residual(k.by, k.value, groups[k]))
	}
	return out
}

func (f *frame) residual(by, value string, points []point) Residual {
	r := Residual{By: by, Value: value}
	old := func(p *point) *timings { return &f.units[p.unit].old }
	now := func(p *point) *timings { return &f.units[p.unit].now }
	first := compare(points, observedFirst,
		func(p *point) float64 { return p.firstMS(old(p)) }, func(p *point) float64 { return p.firstMS(now(p)) })
	completion := compare(points, observedCompletion,
		func(p *point) float64 { return p.completionMS(old(p)) }, func(p *point) float64 { return p.completionMS(now(p)) })
	r.FirstToken, r.Completion = first.Errors, completion.Errors
	var a, b []float64
	for i := range points {
		p := &points[i]
		a = append(a, p.first-p.firstMS(now(p)))
		if v, ok := observedCompletion(p); ok {
			b = append(b, v-p.completionMS(now(p)))
		}
	}
	r.FirstTokenOff, r.CompletionOff = quantilesOf(a), quantilesOf(b)
	return r
}

func mean(v []float64) float64 { return stat.Mean(v, nil) }

// quantile sorts v; 0 where there is none.
func quantile(v []float64, p float64) float64 {
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	return stat.Quantile(p, stat.Empirical, v, nil)
}

func quantilesOf(v []float64) Quantiles {
	return Quantiles{P10: quantile(v, 0.1), P50: quantile(v, 0.5), P90: quantile(v, 0.9), P99: quantile(v, 0.99)}
}
