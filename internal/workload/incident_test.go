package workload

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestIncidentValidate(t *testing.T) {
	good := Incident{Kind: Slow, Endpoint: 3, At: 5, For: 7, Factor: 2}
	require.NoError(t, good.Validate(4))
	for want, spoil := range map[string]func(*Incident){
		"Kind is 0":                            func(i *Incident) { i.Kind = 0 },
		"Kind is 7":                            func(i *Incident) { i.Kind = 7 },
		"Endpoint is 4":                        func(i *Incident) { i.Endpoint = 4 },
		"Endpoint is -1":                       func(i *Incident) { i.Endpoint = -1 },
		"At is -1ns":                           func(i *Incident) { i.At = -1 },
		"For is -1ns":                          func(i *Incident) { i.For = -1 },
		"For is 2562047":                       func(i *Incident) { i.For = math.MaxInt64 - 4 },
		"Factor is 0":                          func(i *Incident) { i.Factor = 0 },
		"Factor is NaN":                        func(i *Incident) { i.Factor = math.NaN() },
		"Factor is 2, it must be 0 for silent": func(i *Incident) { i.Kind = Silent },
	} {
		i := good
		spoil(&i)
		require.ErrorContains(t, i.Validate(4), "workload: Incident."+want)
	}
	assert.Equal(t, "freeze", Freeze.String())
	assert.Equal(t, "unknown", IncidentKind(0).String())
	assert.Equal(t, "unknown", IncidentKind(9).String())
}

func TestIncidentEnd(t *testing.T) {
	at, ok := Incident{Kind: Drain, At: 5, For: 6}.End()
	assert.True(t, ok)
	assert.EqualValues(t, 11, at)
	_, ok = Incident{Kind: Drain, At: 5}.End()
	assert.False(t, ok)
	at, ok = Incident{Kind: Restart, At: 5}.End()
	assert.True(t, ok)
	assert.EqualValues(t, 5, at)
}

func TestValidateIncidents(t *testing.T) {
	list := []Incident{{Kind: Silent, At: 10, For: 5}, {Kind: Silent, At: 15}, {Kind: Drain, At: 11}, {Kind: Silent, At: 11, Endpoint: 1}}
	require.NoError(t, ValidateIncidents(list, 2))
	err := ValidateIncidents(append(list, Incident{Kind: Silent, At: 99}, Incident{Kind: Drain, Endpoint: 2}), 2)
	require.ErrorContains(t, err, "endpoint 0 has two incidents silent at 99ns")
	require.ErrorContains(t, err, "Endpoint is 2", "all faults are there")
	require.NoError(t, ValidateIncidents(nil, 0))
}

func TestRolling(t *testing.T) {
	list, err := Rolling(Incident{Kind: Restart, At: time.Minute, For: time.Second}, 3, time.Hour)
	require.NoError(t, err)
	require.NoError(t, ValidateIncidents(list, 3))
	require.Len(t, list, 3)
	assert.Equal(t, Incident{Kind: Restart, Endpoint: 2, At: 2*time.Hour + time.Minute, For: time.Second}, list[2])
	_, err = Rolling(Incident{Kind: Restart}, 0, 1)
	require.ErrorContains(t, err, "endpoints is 0")
	_, err = Rolling(Incident{Kind: Restart}, 1, 0)
	require.ErrorContains(t, err, "every is 0s")
	_, err = Rolling(Incident{Kind: Restart, Factor: 1}, 1, 1)
	require.ErrorContains(t, err, "Factor is 1")
}

func TestTroubles(t *testing.T) {
	// 1000 endpoints, so that hardly any incident is left out.
	tr := Troubles{Seed: 1, Every: time.Second, For: 10 * time.Second, Until: 10_000 * time.Second}
	list, err := tr.Random(1000)
	require.NoError(t, err)
	require.NoError(t, ValidateIncidents(list, 1000))
	again, err := tr.Random(1000)
	require.NoError(t, err)
	assert.Equal(t, list, again)
	within(t, 10_000, float64(len(list)), 0.05, "count, 1 % left out")
	kinds, sum := map[IncidentKind]int{}, 0.0
	for _, i := range list {
		kinds[i.Kind]++
		sum += i.For.Seconds()
		require.LessOrEqual(t, i.At, tr.Until)
	}
	assert.Len(t, kinds, 6)
	within(t, 10_000.0/6, float64(kinds[Dead]), 0.12, "kinds are equally likely")
	within(t, 10, sum/float64(len(list)), 0.05, "mean duration")

	tr.Kinds = []IncidentKind{Slow}
	list, err = tr.Random(1)
	require.NoError(t, err)
	require.NoError(t, ValidateIncidents(list, 1), "never two at once")
	within(t, 10_000.0/11, float64(len(list)), 0.15, "busy 10 s of every 11")
	assert.InDelta(t, 3, list[0].Factor, 0)

	for want, tr := range map[string]Troubles{
		"Every (s) is 0":  {For: 1, Until: 1},
		"For (s) is 0":    {Every: time.Second, Until: 1},
		"Until (s) is -1": {Every: time.Second, For: time.Second, Until: -time.Second},
		"Until/Every":     {Every: time.Millisecond, For: time.Second, Until: 1e5 * time.Second},
	} {
		_, err := tr.Random(1)
		require.ErrorContains(t, err, "workload: "+want)
	}
	_, err = Troubles{Every: time.Second, For: time.Second}.Random(0)
	require.ErrorContains(t, err, "endpoints is 0")
	_, err = Troubles{Every: 1e6, For: time.Second, Until: time.Hour, Kinds: []IncidentKind{9}}.Random(1)
	require.ErrorContains(t, err, "Until/Every")
	_, err = Troubles{Every: time.Second, For: time.Second, Until: time.Hour, Kinds: []IncidentKind{9}}.Random(1)
	require.ErrorContains(t, err, "Kind is 9")
}

func TestTelemetryValidate(t *testing.T) {
	require.NoError(t, Telemetry{Skew: -time.Hour, Loss: 1}.Validate())
	for want, v := range map[string]Telemetry{
		"Period is -1ns": {Period: -1}, "Delay is -1ns": {Delay: -1}, "Jitter is": {Jitter: -1}, "EventDelay is": {EventDelay: -1},
		"Loss is NaN": {Loss: math.NaN()}, "Loss is 2": {Loss: 2},
	} {
		require.ErrorContains(t, v.Validate(), "workload: Telemetry."+want)
	}
}

func TestScenarios(t *testing.T) {
	assert.Len(t, ScenarioNames(), 17)
	for _, name := range ScenarioNames() {
		s, err := BuildScenario(name, Size{Requests: 500, Endpoints: 4, Speed: 1.2})
		require.NoError(t, err, name)
		require.NoError(t, s.Requests.Check(), name)
		require.NoError(t, ValidateIncidents(s.Incidents, 4), name)
		if s.Telemetry != nil {
			require.NoError(t, s.Telemetry.Validate(), name)
		}
		within(t, 500, float64(len(s.Requests)), 0.5, name)
		first := play(t, must(s.Source()))
		assert.Equal(t, first, play(t, must(s.Source())), "%s: twice the same", name)
		assert.Len(t, first, len(s.Requests))
		for _, i := range s.Incidents {
			assert.Greater(t, i.At, time.Duration(0))
			assert.Less(t, i.At, first[len(first)-1].Arrival, "%s: while there is work", name)
		}
	}
	a, err := BuildScenario("shared-prefixes", Size{})
	require.NoError(t, err)
	b, err := BuildScenario("shared-prefixes", Size{Endpoints: 16, Speed: 2})
	require.NoError(t, err)
	within(t, 4*Summarize(a.Requests).Rate, Summarize(b.Requests).Rate, 1e-6, "load grows with the fleet")
	a, err = BuildScenario("agentic", Size{})
	require.NoError(t, err)
	within(t, 2000, float64(len(a.Requests)), 0.35, "about as many as asked for")
	b, err = BuildScenario("agentic", Size{Speed: 4})
	require.NoError(t, err)
	within(t, a.Requests[0].Arrival.Seconds()/4, b.Requests[0].Arrival.Seconds(), 1e-6, "sessions come faster")
	assert.Equal(t, Summarize(a.Requests).Think, Summarize(b.Requests).Think, "and think as long")

	_, err = BuildScenario("none", Size{})
	require.ErrorContains(t, err, `workload: there is no scenario "none", only long-prompts, `)
	_, err = BuildScenario("restart", Size{Endpoints: -1})
	require.ErrorContains(t, err, "Endpoints is -1")
	_, err = BuildScenario("restart", Size{Speed: -1})
	require.ErrorContains(t, err, "Speed is -1")
	_, err = BuildScenario("restart", Size{Requests: -1})
	require.ErrorContains(t, err, "Load.Requests is -1")
}
