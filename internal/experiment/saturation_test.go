package experiment_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/internal/experiment"
)

func TestFind(t *testing.T) {
	for _, c := range []struct {
		name        string
		search      experiment.Search
		at          func(speed float64) (goodput, e2e float64)
		least, most float64
		unsaturated bool
	}{
		{"goodput falls", experiment.Search{}, func(s float64) (float64, float64) { return below(s, 3), 1 }, 3 / 1.02, 3, false},
		{"only what is left of the light load's counts", experiment.Search{},
			func(s float64) (float64, float64) { return 0.5 - 0.01*s, 1 }, 9.99 / 1.02, 10.1, false}, // 0.8 x (0.5 - 0.01/16)
		{"no request keeps the SLO", experiment.Search{}, func(s float64) (float64, float64) { return 0, 1 + s }, 7.5 / 1.02, 7.5, false},
		{"another share", experiment.Search{Keep: 0.5, Stretch: 1e9},
			func(s float64) (float64, float64) { return 1 / (1 + s), s }, 1.12 / 1.02, 1.126, false},
		{"never", experiment.Search{Most: 5}, func(float64) (float64, float64) { return 1, 1 }, 5, 5, true},
		{"at once", experiment.Search{}, func(s float64) (float64, float64) { return below(s, 1.0/16), 1 }, 1.0 / 16, 1.0 / 16, false},
		{"roughly", experiment.Search{Tolerance: 1}, func(s float64) (float64, float64) { return below(s, 3), 1 }, 1.5, 3, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			runs := 0
			s, err := c.search.Find(func(speed float64) (float64, float64) {
				runs++
				return c.at(speed)
			})
			require.NoError(t, err)
			assert.GreaterOrEqual(t, s.Speed, c.least)
			assert.LessOrEqual(t, s.Speed, c.most)
			assert.Equal(t, c.unsaturated, s.Unsaturated)
			assert.Equal(t, runs, s.Runs)
			assert.Equal(t, s.Speed, s.Rate)
			assert.Less(t, runs, 25)
		})
	}
}

func below(s, limit float64) float64 {
	if s <= limit {
		return 1
	}
	return 0
}

// An engine that takes 100 ms for each request serves 10 a second. Above that a queue grows for as long as requests come.
func TestSaturationOfAToyWorld(t *testing.T) {
	g := experiment.Grid{
		Policies: []experiment.Policy{experiment.Default()}, Workloads: []experiment.Workload{clock(1000)}, Fleets: []experiment.Fleet{serial()},
	}
	s, err := g.Saturation(g.Workloads[0], g.Fleets[0])
	require.NoError(t, err)
	assert.InDelta(t, 10, s.Speed, 0.4)
	assert.InDelta(t, s.Speed, s.Rate, 0.1)
	assert.InDelta(t, 102, s.LightE2E, 0.5, "100 ms, and the network both ways")
	assert.Equal(t, 1.0, s.LightGoodput)
	assert.False(t, s.Unsaturated)
}
