package admission

import (
	"math"
	"sort"
)

const (
	// levelStep is the ratio of one level of the limit to the next lower.
	levelStep = 1.25

	// sameBlock is the largest difference in ln(running) of observations of one block, less than that of two levels.
	sameBlock = 0.15
	// sameLevel is the largest difference in ln(running) of two blocks at which a difference in throughput is one in time.
	sameLevel = 0.08
	// maxSpan is the largest distance of two blocks compared, in gaps between levels. Over a longer one the mean slope says
	// little of the slope anywhere.
	maxSpan = 2.2

	// leastSpan is the least distance of two blocks compared, in ln(running): half of a gap and some more.
	leastSpan = 0.13
	// recentBlocks is the number of blocks with which a new one may be compared.
	recentBlocks = 4

	// A slope beyond these is of something else than the number of requests. Throughput rises at most in proportion; it
	// falls where an engine preempts.
	minSlope, maxSlope = -1, 1.5

	// shiftNoise is how many standard deviations two blocks at one level differ where the engine or the mix has changed,
	// shiftLeast the least such difference in ln(throughput), and shiftKeep what evidence keeps of its weight then.
	shiftNoise, shiftLeast, shiftKeep = 4, 0.1, 0.125

	// sharedBlock lowers the weight of a comparison, since the next one shares a block with it.
	sharedBlock = 2. / 3

	// The noise of ln(throughput) of one observation: what it is taken for before there are any, with what weight, and the
	// least.
	priorNoise, priorWeight, leastNoise = 0.1, 4, 0.01

	// sureness is the number of standard errors between a slope and the gain asked for at which they surely differ.
	sureness = 1.5
)

// limitBlock is the sum of observations in a row with about the same number of running requests.
type limitBlock struct {
	count                 int
	seconds, area, tokens float64 // area = running x seconds
	logs, squares         float64 // of ln(throughput) of each observation
}

func (b *limitBlock) running() float64    { return b.area / b.seconds }
func (b *limitBlock) throughput() float64 { return b.tokens / b.seconds }

func (b *limitBlock) add(running, tokens, seconds float64) {
	y := math.Log(tokens / seconds)
	b.count++
	b.seconds += seconds
	b.area += running * seconds
	b.tokens += tokens
	b.logs += y
	b.squares += y * y
}

// slopeSums are the sums of a weighted regression of ln(throughput) on ln(running).
type slopeSums struct{ product, square float64 }

func (s *slopeSums) slope() float64 { return s.product / s.square }

// limitGap is the evidence on the slope between two levels. Comparisons of a block with a later one are kept apart by
// direction, so that throughput that drifts in time cancels.
type limitGap struct {
	rise, fall slopeSums
	touched    int64 // observation at which the last comparison was added
}

// limitCurve is what is known of ln(throughput) as a function of ln(running), level by level. Only differences between
// neighbouring blocks are used: a mix that makes all levels slower leaves them as they are.
type limitCurve struct {
	gain  float64
	block int
	keep  float64 // share of its weight that evidence keeps from one observation to the next

	levels []int
	logs   []float64
	gaps   []limitGap // gaps[i] is between levels[i] and levels[i+1]

	count   int64                    // usable observations
	decayed int64                    // count at the last decay
	now     limitBlock               // under way
	recent  [recentBlocks]limitBlock // complete ones, the newest first

	// Noise: squared deviations of ln(throughput) of single observations from their block, and of blocks from the block
	// before on the same level, scaled to one observation.
	within, between       float64
	withinDOF, betweenDOF float64
}

func newLimitCurve(cfg LimitConfig) limitCurve {
	c := limitCurve{
		gain: cfg.Gain, block: cfg.Block, keep: 1 - 1/float64(cfg.Memory), withinDOF: priorWeight, within: priorWeight * priorNoise * priorNoise,
	}
	for v := cfg.Min; v < cfg.Max; v = max(v+1, int(math.Round(float64(v)*levelStep))) {
		c.levels = append(c.levels, v)
	}
	// A last step of less than half the usual one would be lost in noise.
	if n := len(c.levels); n > 1 && math.Log(float64(cfg.Max)/float64(c.levels[n-1])) < math.Log(levelStep)/2 && cfg.Max-c.levels[n-1] > 1 {
		c.levels = c.levels[:n-1]
	}
	c.levels = append(c.levels, cfg.Max)
	for _, v := range c.levels {
		c.logs = append(c.logs, math.Log(float64(v)))
	}
	c.gaps = make([]limitGap, len(c.levels)-1)
	return c
}

// levelOf returns the highest level that is not above limit.
func (c *limitCurve) levelOf(limit int) int { return sort.SearchInts(c.levels, limit+1) - 1 }

// add takes up one observation. It returns the block that this ended, if it was long enough to be compared.
func (c *limitCurve) add(running, tokens, seconds float64) (b limitBlock, ended bool) {
	c.count++
	if c.now.count > 0 && math.Abs(math.Log(running/c.now.running())) > sameBlock {
		b, ended = c.end()
	}
	c.now.add(running, tokens, seconds)
	if c.now.count >= c.block {
		return c.end()
	}
	return b, ended
}

// cut ends the block under way, for what follows is under another limit.
func (c *limitCurve) cut() { c.now = limitBlock{} }

// lapse drops the blocks: after a pause what follows is not comparable with them.
func (c *limitCurve) lapse() { c.now, c.recent = limitBlock{}, [recentBlocks]limitBlock{} }

func (c *limitCurve) end() (limitBlock, bool) {
	b := c.now
	c.now = limitBlock{}
	if 2*b.count < c.block || b.count < 2 {
		return b, false
	}
	c.decay()
	n := float64(b.count)
	c.within += max(0, b.squares-b.logs*b.logs/n)
	c.withinDOF += n - 1
	if !c.shifted(&b) {
		c.compare(&b)
	}
	copy(c.recent[1:], c.recent[:])
	c.recent[0] = b
	return b, true
}

// shifted compares the block with the newest one at its level and learns how much they differ. Where that is more than
// noise, the engine or the mix has changed, and what was learned counts less from now on.
func (c *limitCurve) shifted(b *limitBlock) bool {
	for i := range c.recent {
		a := &c.recent[i]
		if a.count == 0 {
			return false
		}
		dx := math.Log(b.running() / a.running())
		if math.Abs(dx) >= sameLevel {
			continue
		}
		dy := math.Log(b.throughput()/a.throughput()) - dx*c.slopeAt(b.running())
		scaled := dy * dy * pairWeight(a, b)
		if math.Abs(dy) > shiftLeast && scaled > shiftNoise*shiftNoise*c.noise()*c.noise() {
			c.scale(shiftKeep)
			return true
		}
		c.between += scaled
		c.betweenDOF++
		return false
	}
	return false
}

// pairWeight is the inverse of the variance of a difference of two blocks, in that of one observation.
func pairWeight(a, b *limitBlock) float64 {
	return float64(a.count) * float64(b.count) / float64(a.count+b.count)
}

func (c *limitCurve) decay() {
	k := math.Pow(c.keep, float64(c.count-c.decayed))
	c.decayed = c.count
	c.scale(k)
	c.within, c.withinDOF = k*c.within, k*c.withinDOF
	c.between, c.betweenDOF = k*c.between, k*c.betweenDOF
}

func (c *limitCurve) scale(k float64) {
	for i := range c.gaps {
		g := &c.gaps[i]
		g.rise.product, g.rise.square = k*g.rise.product, k*g.rise.square
		g.fall.product, g.fall.square = k*g.fall.product, k*g.fall.square
	}
}

// noise is the standard deviation of ln(throughput) of one observation. Differences of whole blocks count as much as the
// observations in them: noise that lasts for longer than one observation is seen only there.
func (c *limitCurve) noise() float64 {
	weight := float64(c.block)
	v := (c.within + weight*c.between) / (c.withinDOF + weight*c.betweenDOF)
	return max(leastNoise, math.Sqrt(v))
}

// compare learns from the block and the newest one at another level, unless there is one at the same level since: then
// that one has been compared.
func (c *limitCurve) compare(b *limitBlock) {
	for i := range c.recent {
		a := &c.recent[i]
		if a.count == 0 {
			return
		}
		dx := math.Log(b.running() / a.running())
		if math.Abs(dx) < sameLevel {
			return
		}
		if math.Abs(dx) >= leastSpan {
			c.learn(a, b, dx)
			return
		}
	}
}

// learn adds what two blocks, a before b, say of the gaps between them.
func (c *limitCurve) learn(a, b *limitBlock, dx float64) {
	x, dy := math.Log(a.running()), math.Log(b.throughput()/a.throughput())
	weight := pairWeight(a, b)
	slope := min(max(dy/dx, minSlope), maxSlope)
	lo, hi := min(x, x+dx), max(x, x+dx)
	for i := range c.gaps {
		width := c.logs[i+1] - c.logs[i]
		overlap := min(hi, c.logs[i+1]) - max(lo, c.logs[i])
		if 2*overlap < width || hi-lo > maxSpan*width {
			continue
		}
		g := &c.gaps[i]
		sums := &g.rise
		if dx < 0 {
			sums = &g.fall
		}
		w := sharedBlock * weight * overlap * overlap
		sums.product += w * slope
		sums.square += w
		g.touched = c.count
	}
}

// leastSquare is the weight below which a direction says nothing.
const leastSquare = 1e-6

// slope returns the slope in the gap, NaN if nothing is known, and its standard error, infinite unless it was crossed in
// both directions.
func (c *limitCurve) slope(gap int) (slope, stdErr float64) {
	g := &c.gaps[gap]
	rise, fall := g.rise.square > leastSquare, g.fall.square > leastSquare
	switch {
	case rise && fall:
		return (g.rise.slope() + g.fall.slope()) / 2, c.noise() / 2 * math.Sqrt(1/g.rise.square+1/g.fall.square)
	case rise:
		return g.rise.slope(), math.Inf(1)
	case fall:
		return g.fall.slope(), math.Inf(1)
	}
	return math.NaN(), math.Inf(1)
}

// slopeAt is a guess of the slope at a number of running requests, from 0 to 1.
func (c *limitCurve) slopeAt(running float64) float64 {
	gap := c.levelOf(int(min(running, maxLimit)))
	if gap >= 0 && gap < len(c.gaps) {
		if slope, _ := c.slope(gap); !math.IsNaN(slope) {
			return min(max(slope, 0), 1)
		}
	}
	return 0.5
}

// gains and gainsNot say that the slope in the gap is above or below the gain asked for by that many standard errors. Both
// are false where there is no such gap, or it was not crossed in both directions.
func (c *limitCurve) gains(gap int, errors float64) bool {
	slope, stdErr, ok := c.both(gap)
	return ok && slope-errors*stdErr > c.gain
}

func (c *limitCurve) gainsNot(gap int, errors float64) bool {
	slope, stdErr, ok := c.both(gap)
	return ok && slope+errors*stdErr < c.gain
}

func (c *limitCurve) both(gap int) (slope, stdErr float64, ok bool) {
	if gap < 0 || gap >= len(c.gaps) {
		return 0, 0, false
	}
	slope, stdErr = c.slope(gap)
	return slope, stdErr, !math.IsInf(stdErr, 1)
}
