package admission_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/admission"
)

func TestZeroCapsAdmitEverything(t *testing.T) {
	var c admission.Caps
	require.Equal(t, admission.Admitted, c.CheckEndpoint(1e9, 1e9))
	require.Equal(t, admission.Admitted, c.CheckPool(1e9, 1<<30))
}

func TestCapsRefuseAtTheLimitAndNotBelow(t *testing.T) {
	c := admission.Caps{Waiting: 3, Endpoint: 5, Aggregate: 7, Tenant: 2}
	for _, tc := range []struct {
		requests, waiting float64
		want              admission.Verdict
	}{
		{4, 2, admission.Admitted}, {4, -1, admission.Admitted}, {4, 3, admission.OverWaiting}, {5, 2, admission.OverEndpoint}, {5, 3, admission.OverWaiting},
	} {
		require.Equal(t, tc.want, c.CheckEndpoint(tc.requests, tc.waiting), "%+v", tc)
	}
	require.Equal(t, admission.Admitted, c.CheckPool(6, 1))
	require.Equal(t, admission.OverAggregate, c.CheckPool(7, 1))
	require.Equal(t, admission.OverTenant, c.CheckPool(6, 2))
}

func TestValidateNamesEveryFault(t *testing.T) {
	err := admission.Caps{Waiting: -1, Tenant: -2}.Validate()
	require.ErrorContains(t, err, "Caps.Waiting = -1")
	require.ErrorContains(t, err, "Caps.Tenant = -2")
	require.NoError(t, admission.Caps{}.Validate())
}
