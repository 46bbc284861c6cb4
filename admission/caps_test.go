package admission_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/admission"
)

func TestZeroCapsAdmitEverything(t *testing.T) {
	var c admission.Caps
	require.Equal(t, admission.Admitted, c.CheckEndpoint(1e9, 1e9))
	require.Equal(t, admission.Admitted, c.CheckPool(1e9))
	require.Equal(t, admission.Admitted, c.CheckTenant(admission.Open{Requests: 1 << 30, Tokens: 1 << 60}, 1<<60))
}

func TestCapsRefuseAtTheLimitAndNotBelow(t *testing.T) {
	c := admission.Caps{Waiting: 3, Endpoint: 5, Aggregate: 7, Tenant: 2, TenantTokens: 100}
	for _, tc := range []struct {
		requests, waiting float64
		want              admission.Verdict
	}{
		{4, 2, admission.Admitted}, {4, -1, admission.Admitted}, {4, 3, admission.OverWaiting}, {5, 2, admission.OverEndpoint}, {5, 3, admission.OverWaiting},
	} {
		require.Equal(t, tc.want, c.CheckEndpoint(tc.requests, tc.waiting), "%+v", tc)
	}
	require.Equal(t, admission.Admitted, c.CheckPool(6))
	require.Equal(t, admission.OverAggregate, c.CheckPool(7))
	for _, tc := range []struct {
		requests     int
		open, tokens int64
		want         admission.Verdict
	}{
		{1, 60, 40, admission.Admitted}, {2, 0, 0, admission.OverTenant}, {1, 61, 40, admission.OverTenantTokens},
		{0, 0, 101, admission.OverTenantTokens}, {2, 61, 40, admission.OverTenant},
	} {
		require.Equal(t, tc.want, c.CheckTenant(admission.Open{Requests: tc.requests, Tokens: tc.open}, tc.tokens), "%+v", tc)
	}
}

func TestValidateNamesEveryFault(t *testing.T) {
	err := admission.Caps{Waiting: -1, Tenant: -2, TenantTokens: -3}.Validate()
	require.ErrorContains(t, err, "Caps.Waiting = -1")
	require.ErrorContains(t, err, "Caps.Tenant = -2")
	require.ErrorContains(t, err, "Caps.TenantTokens = -3")
	require.NoError(t, admission.Caps{}.Validate())
}
