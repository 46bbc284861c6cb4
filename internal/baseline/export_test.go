package baseline

import (
	"time"

	"github.com/isobar-go/isobar/internal/sim"
	"github.com/isobar-go/isobar/internal/world"
)

// Forecast predicts the completion of a request of that prompt and output, ms from now, and by how much it adds to the completions of
// all, for an engine in the given state.
func Forecast(t world.Truth, now time.Duration, q sim.Request) (own, added float64) {
	var with, without forecast
	with.load(t, now)
	without.copy(&with)
	without.until(true)
	q.ID = newcomerID
	with.waiting = append(with.waiting, t.Engine.AsWaiting(q))
	with.until(true)
	return with.end, with.done - without.done
}
