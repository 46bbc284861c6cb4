package telemetry_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/telemetry"
)

// at returns a time of the virtual clock of the tests, in seconds. It has no monotonic part.
func at(seconds float64) time.Time {
	return time.Unix(1000, 0).Add(time.Duration(seconds * float64(time.Second)))
}

func TestZeroReadingIsUnknownNotZero(t *testing.T) {
	var r telemetry.Reading
	v, known := r.Value()
	assert.Zero(t, v)
	assert.False(t, known)
	assert.False(t, r.Known())
	assert.True(t, r.ObservedAt().IsZero())

	zero := telemetry.At(0, at(3))
	v, known = zero.Value()
	assert.Zero(t, v)
	assert.True(t, known)
	assert.Equal(t, at(3), zero.ObservedAt())
	assert.NotEqual(t, r, zero)
	assert.Equal(t, telemetry.V(7), telemetry.At(7, time.Time{}))
}

func TestClassify(t *testing.T) {
	custom := telemetry.Limits{FreshFor: time.Second, StaleAfter: time.Second}
	for _, tc := range []struct {
		limits telemetry.Limits
		age    time.Duration
		want   telemetry.Class
	}{
		{telemetry.Limits{}, 0, telemetry.Fresh},
		{telemetry.Limits{}, 2 * time.Second, telemetry.Fresh},
		{telemetry.Limits{}, 2*time.Second + 1, telemetry.Aging},
		{telemetry.Limits{}, 10 * time.Second, telemetry.Aging},
		{telemetry.Limits{}, 10*time.Second + 1, telemetry.Stale},
		{telemetry.Limits{}, math.MaxInt64, telemetry.Stale},
		{telemetry.Limits{}, -1, telemetry.Stale},
		{telemetry.Limits{}, math.MinInt64, telemetry.Stale},
		{custom, time.Second, telemetry.Fresh},
		{custom, time.Second + 1, telemetry.Stale},
		{custom, -time.Hour, telemetry.Stale},
	} {
		assert.Equal(t, tc.want, tc.limits.Classify(tc.age), "%v %v", tc.limits, tc.age)
	}
}

func TestClassOfReading(t *testing.T) {
	var l telemetry.Limits
	assert.Equal(t, telemetry.Missing, l.Of(telemetry.Reading{}, at(0)))
	assert.Equal(t, telemetry.Fresh, l.Of(telemetry.At(0, at(1)), at(2)))
	assert.Equal(t, telemetry.Aging, l.Of(telemetry.At(0, at(1)), at(8)))
	assert.Equal(t, telemetry.Stale, l.Of(telemetry.At(0, at(1)), at(80)))
	assert.Equal(t, telemetry.Stale, l.Of(telemetry.At(0, at(1)), at(0)))
}

func TestLimitsEffective(t *testing.T) {
	const s = time.Second
	for _, tc := range []struct{ in, want telemetry.Limits }{
		{telemetry.Limits{}, telemetry.Limits{FreshFor: 2 * s, StaleAfter: 10 * s}},
		{telemetry.Limits{FreshFor: s}, telemetry.Limits{FreshFor: s, StaleAfter: 10 * s}},
		{telemetry.Limits{FreshFor: 30 * s}, telemetry.Limits{FreshFor: 30 * s, StaleAfter: 30 * s}},
		{telemetry.Limits{StaleAfter: s}, telemetry.Limits{FreshFor: s, StaleAfter: s}},
		{telemetry.Limits{StaleAfter: 5 * s}, telemetry.Limits{FreshFor: 2 * s, StaleAfter: 5 * s}},
		{telemetry.Limits{FreshFor: -s, StaleAfter: -s}, telemetry.Limits{FreshFor: 2 * s, StaleAfter: 10 * s}},
		{telemetry.Limits{FreshFor: 3 * s, StaleAfter: s}, telemetry.Limits{FreshFor: 3 * s, StaleAfter: 3 * s}},
	} {
		assert.Equal(t, tc.want, tc.in.Effective(), "%v", tc.in)
		assert.Equal(t, tc.want, tc.want.Effective(), "effective limits stay as they are")
		assert.NoError(t, tc.want.Validate())
	}
}

func TestValidate(t *testing.T) {
	require.NoError(t, telemetry.StoreConfig{}.Validate())
	require.NoError(t, telemetry.Limits{StaleAfter: 1}.Validate())

	err := telemetry.StoreConfig{Limits: telemetry.Limits{FreshFor: -1, StaleAfter: -2}}.Validate()
	require.Error(t, err)
	for _, part := range []string{"telemetry: FreshFor -1ns", "telemetry: StaleAfter -2ns"} {
		assert.ErrorContains(t, err, part)
	}
	err = telemetry.Limits{FreshFor: 2, StaleAfter: 1}.Validate()
	assert.ErrorContains(t, err, "StaleAfter 1ns is below FreshFor 2ns")
}

func TestNames(t *testing.T) {
	assert.Equal(t, "missing stale aging fresh class(9)", join(telemetry.Missing, telemetry.Stale, telemetry.Aging,
		telemetry.Fresh, telemetry.Class(9)))
	assert.Equal(t, "unknown ok error oom health(9)", join(telemetry.HealthUnknown, telemetry.HealthOK,
		telemetry.HealthError, telemetry.HealthOOM, telemetry.Health(9)))
	assert.Equal(t, "unknown no yes tri(9)", join(telemetry.TriUnknown, telemetry.TriNo, telemetry.TriYes,
		telemetry.Tri(9)))
	assert.Equal(t, "vouched none evidence(9)", join(telemetry.EvidenceVouched, telemetry.EvidenceNone,
		telemetry.Evidence(9)))
	assert.Equal(t, "unknown ready loading cached unloaded adapter-state(9)", join(telemetry.AdapterUnknown,
		telemetry.AdapterReady, telemetry.AdapterLoading, telemetry.AdapterCached, telemetry.AdapterUnloaded,
		telemetry.AdapterState(9)))
}

func join[T interface{ String() string }](all ...T) string {
	out := ""
	for i, v := range all {
		if i > 0 {
			out += " "
		}
		out += v.String()
	}
	return out
}
