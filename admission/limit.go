package admission

import (
	"iter"
	"math"
	"time"
)

const (
	// keptChanges is the number of changes remembered.
	keptChanges = 16
	// fullShare is the share of the limit from which on the running requests count as held by it.
	fullShare = 0.9
	// trialBlocks is the number of blocks after which a trial is given up that has not reached its level.
	trialBlocks = 4
	// trialsInARow is the number of trials of one direction without a sure result after which the likelier one decides.
	trialsInARow = 4
	// maxInterval is the longest interval that says anything: a mean over more hides what happened in it.
	maxInterval = 5 * time.Minute
	// maxFigure bounds running and tokens, far above any engine and far below where sums would lose precision.
	maxFigure = 1e12
)

// Limiter learns how many running requests one endpoint should have: up to the knee, beyond which more of them raise the
// time per token and hardly the number of tokens per second.
//
// It watches tokens, never latency: by Little's law the time per token of one request is the number of running requests
// divided by the throughput X, so that where X rises by the share e for each share of requests added, time per token rises
// by 1 - e. A long prompt or a long answer alone therefore changes nothing. The knee is where e falls below
// [LimitConfig.Gain]; the idea of a knee of the throughput curve as the best working point is Kleinrock's (1979: power, the
// ratio of throughput to delay, is greatest where e = 1/2).
//
// The limit moves on levels from Min to Max, each 25 % (at least 1) above the one below, one level at a time. Observations
// in a row at about the same number of running requests make a block. Blocks that follow each other at neighbouring levels
// are compared, upwards and downwards, so that slow drift cancels; what this says of e between these two levels, and the
// noise that was measured on the way, decides: down a level if e below is surely too small, up a level if e above is surely
// large enough. Otherwise, and again after each Memory observations, the limiter tries the next level for a block, if the
// load fills the limit, and goes back to compare once more; where four such trials leave a doubt, the likelier side of it
// decides. A load below the limit says nothing of what is above it, and then nothing is changed. When throughput on one
// level changes at once (the engine slowed down, the mix changed) older evidence counts an eighth.
//
// Observations should be some 0.5 to 10 s apart and each cover several passes of the engine. A descent or climb takes about
// three blocks for a level.
//
// A Limiter is not safe for concurrent use: calls must not overlap, except that any number of reading calls may. It
// keeps no clock. [NewLimiter] makes one.
type Limiter struct {
	cfg   LimitConfig // in effect
	curve limitCurve

	seen   bool
	last   int64 // now of the last observation
	unused int   // observations in a row that said nothing
	moving int   // observations to leave out while the engine comes to a new limit

	level int        // what is held to be right
	trial int        // level on trial, relative to level: -1, 0 or 1
	age   int        // observations since the trial began
	down  trialState // of the next lower level
	up    trialState // of the next higher level
	wasUp bool       // direction of the last trial

	changes [keptChanges]Change
	changed int64 // number of changes ever
}

type trialState struct {
	inARow int   // trials without a sure result
	after  int64 // observation from which on the next is allowed
}

// NewLimiter returns a limiter that has seen nothing, or the error of [LimitConfig.Validate].
func NewLimiter(cfg LimitConfig) (*Limiter, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.WithDefaults()
	l := &Limiter{cfg: cfg, curve: newLimitCurve(cfg)}
	l.level = l.curve.levelOf(cfg.Start)
	return l, nil
}

// Config returns the settings in effect.
func (l *Limiter) Config() LimitConfig { return l.cfg }

// Limit returns the number of running requests that the endpoint may have now, from Min to Max; Max with ObserveOnly.
func (l *Limiter) Limit() int {
	if l.cfg.ObserveOnly {
		return l.cfg.Max
	}
	return l.curve.levels[l.level+l.trial]
}

// Learned returns the limit that is held to be right, without the level on trial, also with ObserveOnly.
func (l *Limiter) Learned() int { return l.curve.levels[l.level] }

// Last returns the newest change, or the zero Change if there was none.
func (l *Limiter) Last() Change {
	if l.changed == 0 {
		return Change{}
	}
	return l.changes[(l.changed-1)%keptChanges]
}

// Changes yields the last 16 changes, oldest first. The limiter must not observe meanwhile.
func (l *Limiter) Changes() iter.Seq[Change] {
	return func(yield func(Change) bool) {
		for i := max(0, l.changed-keptChanges); i < l.changed; i++ {
			if !yield(l.changes[i%keptChanges]) {
				return
			}
		}
	}
}

// Observe tells of the interval since the last call: the mean number of running requests and the number of tokens served
// in it. Tokens are those generated, and those prefilled with whatever weight the caller gives them. now is in nanoseconds
// on one scale of the caller's choice. It returns whether there is a new change.
//
// The first call only begins an interval. An interval is left out if it is empty, of negative length or longer than 5
// minutes, if a figure is NaN, infinite or negative, if running is below 1 or nothing was served; any figure above 1e12 is
// none.
func (l *Limiter) Observe(now int64, running, tokens float64) bool {
	before := l.changed
	elapsed := now - l.last
	ordered := l.seen && now > l.last && elapsed > 0 && elapsed <= int64(maxInterval)
	l.last, l.seen = now, true
	if l.trial != 0 {
		l.age++
	}
	if !ordered || !(running >= 1 && running <= maxFigure) || !(tokens > 0 && tokens <= maxFigure) {
		l.unused++
		if l.unused >= l.cfg.Block {
			l.curve.lapse()
		}
	} else if l.unused = 0; l.moving > 0 {
		l.moving--
	} else {
		b, ended := l.curve.add(running, tokens, float64(elapsed)/float64(time.Second))
		if ended {
			l.decide(now, &b)
		}
	}
	if l.trial != 0 && (l.unused >= l.cfg.Block || l.age >= trialBlocks*l.cfg.Block) {
		l.endTrial(now, LimitNoLoad, &limitBlock{})
	}
	return l.changed != before
}

// decide acts on a block that has ended.
func (l *Limiter) decide(now int64, b *limitBlock) {
	c := &l.curve
	if l.trial != 0 {
		if l.reached(b) {
			l.endTrial(now, l.outcome(), b)
		}
		return
	}
	switch {
	case l.cfg.ObserveOnly:
		l.follow(now, b)
	case c.gainsNot(l.level-1, l.down.sureness()):
		l.step(now, -1, b)
	case c.gains(l.level, l.up.sureness()):
		l.step(now, 1, b)
	default:
		l.settle(-1)
		l.settle(1)
		l.explore(now, b)
	}
}

// follow steps towards the nearest gap of which enough is known. Without trials the gaps between may never be crossed; a
// curve that is flat below a level is taken to be flat above it, and one that rises above to rise below.
func (l *Limiter) follow(now int64, b *limitBlock) {
	c := &l.curve
	for gap := l.level - 1; gap >= 0 && !c.gains(gap, sureness); gap-- {
		if c.gainsNot(gap, sureness) {
			l.step(now, -1, b)
			return
		}
	}
	for gap := l.level; gap < len(c.gaps) && !c.gainsNot(gap, sureness); gap++ {
		if c.gains(gap, sureness) {
			l.step(now, 1, b)
			return
		}
	}
}

// settle leaves the direction alone for a while if its trials are over.
func (l *Limiter) settle(direction int) {
	s := l.state(direction)
	switch {
	case s.inARow >= trialsInARow:
		*s = trialState{after: l.curve.count + int64(l.cfg.Memory)}
	case l.known(direction):
		s.inARow = 0
	}
}

// sureness is the number of standard errors that a step needs.
func (s *trialState) sureness() float64 {
	if s.inARow >= trialsInARow {
		return 0
	}
	return sureness
}

// reached says that the block was nearer to the level on trial than to the other.
func (l *Limiter) reached(b *limitBlock) bool {
	x := math.Log(b.running())
	middle := (l.curve.logs[l.level] + l.curve.logs[l.level+l.trial]) / 2
	return l.trial < 0 && x < middle || l.trial > 0 && x > middle
}

// gap is the one between the level and its neighbour.
func (l *Limiter) gap(direction int) int { return l.level + min(direction, 0) }

// outcome judges a trial by what is known of its gap so far.
func (l *Limiter) outcome() LimitReason {
	slope, _ := l.curve.slope(l.gap(l.trial))
	switch {
	case l.trial > 0 && slope < l.cfg.Gain:
		return LimitNoGain
	case l.trial < 0 && slope >= l.cfg.Gain:
		return LimitLoss
	}
	return LimitConfirming
}

func (l *Limiter) endTrial(now int64, reason LimitReason, b *limitBlock) {
	direction := l.trial
	from := l.curve.levels[l.level+l.trial]
	l.trial, l.age = 0, 0
	l.record(newChange(now, from, l.Learned(), reason, b), direction)
	if reason == LimitNoLoad {
		l.state(direction).after = l.curve.count + int64(trialBlocks*l.cfg.Block)
	}
}

func (l *Limiter) step(now int64, direction int, b *limitBlock) {
	reason := LimitGain
	switch {
	case direction < 0 && l.level == 1:
		reason = LimitFloor
	case direction < 0:
		reason = LimitKnee
	case l.level == len(l.curve.gaps)-1:
		reason = LimitCeiling
	}
	from := l.Learned()
	gap := l.gap(direction)
	l.level += direction
	l.down, l.up = trialState{}, trialState{}
	ch := newChange(now, from, l.Learned(), reason, b)
	ch.Gain, _ = l.curve.slope(gap)
	l.keep(ch)
}

func (l *Limiter) record(ch Change, direction int) {
	if b := l.gap(direction); direction != 0 {
		ch.Gain, _ = l.curve.slope(b)
	}
	l.keep(ch)
}

// keep remembers the change. The limit has changed, so the block under way is over.
func (l *Limiter) keep(ch Change) {
	l.changes[l.changed%keptChanges] = ch
	l.changed++
	if !l.cfg.ObserveOnly {
		l.curve.cut()
		l.moving = l.cfg.Block / 4
	}
}

func (l *Limiter) state(direction int) *trialState {
	if direction > 0 {
		return &l.up
	}
	return &l.down
}

// explore begins a trial if one is due and the load fills the limit.
func (l *Limiter) explore(now int64, b *limitBlock) {
	if l.cfg.ObserveOnly || b.count < l.cfg.Block || b.running() < fullShare*float64(l.Learned()) {
		return
	}
	direction := 1
	if l.wasUp {
		direction = -1
	}
	if !l.due(direction) {
		direction = -direction
		if !l.due(direction) {
			return
		}
	}
	l.state(direction).inARow++
	from := l.Learned()
	l.trial, l.age, l.wasUp = direction, 0, direction > 0
	l.record(newChange(now, from, l.Limit(), LimitExploring, b), direction)
}

// known says that there is no doubt about the next level in the direction.
func (l *Limiter) known(direction int) bool {
	gap := l.gap(direction)
	return l.curve.gains(gap, sureness) || l.curve.gainsNot(gap, sureness)
}

// due says that the next level in the direction should be tried.
func (l *Limiter) due(direction int) bool {
	gap := l.gap(direction)
	if gap < 0 || gap >= len(l.curve.gaps) || l.curve.count < l.state(direction).after {
		return false
	}
	return !l.known(direction) || l.curve.count-l.curve.gaps[gap].touched > int64(l.cfg.Memory)
}
