package telemetry

import "time"

// observing is one run of Observe. The store is locked.
type observing struct {
	s       *Store
	now, at time.Time // at is when the snapshot was observed
	res     Result
	defects defects
	taken   int  // parts that were taken
	learnt  bool // the epoch is another one than before
	future  int  // readings left out because of their time after now
	held    int  // zeros not believed
}

func (o *observing) run(snap *Snapshot, liveLeases int64) {
	s := o.s
	rep := snap.check(o.at, o.now)
	said := rep.future
	for f := range numFigures {
		if rep.words[f].present {
			said++
		}
	}
	if o.at.After(o.now) {
		o.res.Dropped, o.res.DroppedReadings = ReasonFuture, said
		return
	}
	if said == 0 && len(snap.Ranks) == 0 && !snap.Adapters.known() && snap.Health == 0 && snap.Asleep == 0 &&
		snap.Epoch == "" {
		o.res.Dropped = ReasonEmpty
		return
	}
	if !o.takeEpoch(snap.Epoch, said == 0) {
		o.res.Dropped, o.res.DroppedReadings = ReasonOlder, said
		return
	}
	o.future = rep.future
	obs := o.takeFigures(snap, &rep)
	o.takeItems(snap, &rep)
	o.res.DroppedReadings += o.future + o.held
	if o.taken == 0 {
		o.res.Dropped = o.reason()
	} else {
		o.defects |= rep.defects
	}
	obs.ownLeases = liveLeases > 0
	s.suspicion.observe(o.now, obs)
	if o.taken > 0 || o.learnt {
		s.state.Store(s.buildLocked())
	}
}

// reason says why nothing was taken.
func (o *observing) reason() Reason {
	switch {
	case o.held > 0:
		return ReasonUnsampled
	case o.future > 0 && o.future == o.res.DroppedReadings:
		return ReasonFuture
	}
	return ReasonOlder
}

// takeEpoch handles the epoch and returns false if the snapshot is from an earlier one. alone says that the snapshot has
// no figures, so that the epoch itself is its news.
func (o *observing) takeEpoch(epoch string, alone bool) bool {
	s := o.s
	if epoch == "" {
		return true
	}
	newer := s.epoch.superseded(o.at, o.now)
	if s.epoch.seen && s.epoch.v != epoch {
		if !newer {
			return false
		}
		// Reports without an epoch that are newer than this one are about the new process too.
		s.forgetLocked(func(at time.Time) bool { return !at.After(o.at) || at.After(o.now) })
		s.floor = stamp{o.at, true}
		o.res.EpochChanged = true
		o.taken++
	}
	if newer {
		o.learnt = s.epoch.v != epoch
		s.epoch = item[string]{stamp{o.at, true}, epoch}
		if alone {
			o.taken++
		}
	}
	return true
}

// before reports whether a word of the time at may be about a process that is gone.
func (o *observing) before(at time.Time, epoch string) bool {
	f := o.s.floor
	return epoch == "" && f.seen && !f.at.After(o.now) && at.Before(f.at)
}

// takeFigures merges the figures into the store and tells what that means for suspicion.
func (o *observing) takeFigures(snap *Snapshot, rep *report) (obs observation) {
	s := o.s
	if o.withhold(snap, rep) {
		return obs
	}
	newest, some := s.newestLocked()
	for f := range numFigures {
		w, c := rep.words[f], &s.cells[f]
		if !w.present {
			continue
		}
		if o.before(w.at, snap.Epoch) || !c.admits(w, o.now) {
			o.res.DroppedReadings++
			continue
		}
		o.taken++
		if w.bad {
			o.defects.addFigure(f)
		}
		if !f.isLimit() {
			obs.load = true
			obs.moved = obs.moved || c.known != w.known || c.value != w.value
			obs.queue = obs.queue || f == figRunning || f == figWaiting
			if w.known {
				s.seenAny = true
				if !some || newest.After(o.now) || !w.at.Before(newest) {
					s.source = snap.Source
				}
			}
		}
		*c = cell{w.Reading, true}
		if w.known && (f == figKVUsed || f == figKVShare) {
			s.kvOccupied.take(snap.KVOccupied, w.at, o.now)
		}
		if (f == figKVUsed || f == figKVCapacity) && s.overfullLocked() {
			o.defects.addFigure(figKVShare)
		}
	}
	running, waiting := s.cells[figRunning], s.cells[figWaiting]
	obs.busy = running.value+waiting.value > 0
	obs.stuck = running.known && running.value == 0 && waiting.value > 0 &&
		running.at.Sub(waiting.at).Abs() <= s.limits.StaleAfter
	return obs
}

// withhold takes the load figures out of a first report of nothing but zeros that has no evidence, and reports whether
// nothing is left.
func (o *observing) withhold(snap *Snapshot, rep *report) (nothingLeft bool) {
	s := o.s
	if snap.Evidence != EvidenceNone || s.seenAny || s.zero.seen && !s.zero.at.Equal(o.at) {
		return false
	}
	zeros := 0
	for f := range numFigures {
		w := rep.words[f]
		switch {
		case !w.present || f.isLimit():
		case !w.known || w.value != 0:
			return false
		default:
			zeros++
		}
	}
	if zeros == 0 {
		return false
	}
	s.zero = stamp{o.at, true}
	o.held = zeros
	rep.ranks = nil
	left := false
	for f := range numFigures {
		if !f.isLimit() {
			rep.words[f] = word{}
		} else if rep.words[f].present {
			left = true
		}
	}
	return !left
}

// takeItems merges everything but the figures.
func (o *observing) takeItems(snap *Snapshot, rep *report) {
	s := o.s
	if o.before(o.at, snap.Epoch) {
		return
	}
	var d defects
	took := false
	if len(rep.ranks) > 0 {
		took = s.ranks.take(rep.ranks, o.at, o.now)
	}
	if snap.Adapters.known() && s.adapters.superseded(o.at, o.now) {
		took = s.adapters.take(copyAdapters(snap.Adapters, o.at, o.now, &d), o.at, o.now)
	}
	switch {
	case snap.Health == HealthUnknown:
	case snap.Health > HealthOOM:
		d.add(defHealth)
	default:
		took = s.health.take(snap.Health, o.at, o.now) || took
	}
	switch {
	case snap.Asleep == TriUnknown:
	case snap.Asleep > TriYes:
		d.add(defAsleep)
	default:
		took = s.asleep.take(snap.Asleep, o.at, o.now) || took
	}
	if took {
		o.taken++
	}
	o.defects |= d
}
