package telemetry

import (
	"cmp"
	"slices"
	"time"
)

// report is a snapshot after checking: one word for each figure of the whole engine.
type report struct {
	words   words
	ranks   []Rank // checked, by ID; nil if the snapshot has none
	defects defects
	future  int // readings left out because their time is after now
}

func (s *Snapshot) check(observedAt, now time.Time) report {
	var rep report
	own, future := checkAll(s.figures(), observedAt, now)
	rep.future = future
	if len(s.Ranks) == 0 {
		rep.words = own
		return rep
	}
	rep.addRanks(s.Ranks, own, observedAt, now)
	return rep
}

// addRanks computes the engine's figures from those of its ranks, as Snapshot.Ranks documents it.
func (rep *report) addRanks(ranks []Rank, own words, observedAt, now time.Time) {
	hasZero := slices.ContainsFunc(ranks, func(r Rank) bool { return r.ID == 0 })
	ids := make([]int, 0, len(ranks)+1)
	all := make([]words, 0, len(ranks)+1)
	if !hasZero && slices.ContainsFunc(own[:], func(w word) bool { return w.present }) {
		ids, all = append(ids, 0), append(all, own)
	}
	// By ID, so that a repeated one follows the first, and sums round alike in any order.
	if byID := func(a, b Rank) int { return cmp.Compare(a.ID, b.ID) }; !slices.IsSortedFunc(ranks, byID) {
		ranks = slices.Clone(ranks)
		slices.SortStableFunc(ranks, byID)
	}
	for i := range ranks {
		if ranks[i].ID < 0 || len(ids) > 0 && ids[len(ids)-1] == ranks[i].ID {
			rep.defects.add(defRanks)
			continue
		}
		ws, future := checkAll(ranks[i].figures(), observedAt, now)
		rep.future += future
		ids, all = append(ids, ranks[i].ID), append(all, ws)
	}
	anyCapacity := false
	for i := range all {
		all[i].deriveShare()
		anyCapacity = anyCapacity || all[i][figKVCapacity].known
	}
	for f := range numFigures {
		rep.words[f] = combine(f, all, anyCapacity)
		if hasZero && !rep.words[f].present {
			rep.words[f] = own[f]
		}
	}
	rep.ranks = make([]Rank, len(all))
	for i, ws := range all {
		var fs figures
		for f := range numFigures {
			fs[f] = ws[f].Reading
		}
		rep.ranks[i] = fs.rank(ids[i])
	}
}

// deriveShare fills in a rank's KV share and clamps what it uses to what it has.
func (ws *words) deriveShare() {
	used, capacity, share := &ws[figKVUsed], &ws[figKVCapacity], &ws[figKVShare]
	if !used.known || !capacity.known {
		return
	}
	v, clamped := shareOf(used.value, capacity.value)
	if !share.known {
		share.Reading = Reading{value: v, at: earlier(used.at, capacity.at), known: true}
		share.present = true
	}
	if clamped {
		used.value = capacity.value
		share.bad = true
	}
}

// combine joins the words of all ranks about one figure.
func combine(f figure, all []words, anyCapacity bool) word {
	var out word
	n := 0
	for i := range all {
		w := all[i][f]
		if !w.present || f == figKVUsed && anyCapacity && !all[i][figKVCapacity].known {
			continue
		}
		out.bad = out.bad || w.bad
		if !out.present || w.at.Before(out.at) {
			out.at = w.at
		}
		out.present = true
		if !w.known {
			continue
		}
		n++
		out.known = true
		if f == figKVShare {
			out.value = max(out.value, w.value)
		} else {
			out.value += w.value
		}
	}
	if f == figPrefixHitRate && n > 0 {
		out.value /= float64(n)
	}
	if !f.isShare() && out.value > maxFigure {
		out.value, out.known, out.bad = 0, false, true
	}
	return out
}
