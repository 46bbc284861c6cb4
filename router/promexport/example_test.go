package promexport_test

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/router/promexport"
)

func ExampleNew() {
	pool, err := router.New(router.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	registry := prometheus.NewRegistry()
	if err := registry.Register(promexport.New(pool, promexport.Options{})); err != nil {
		fmt.Println(err)
		return
	}
	families, err := registry.Gather()
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, f := range families {
		if f.GetName() == "isobar_endpoints" {
			fmt.Println(f.GetName(), f.GetMetric()[0].GetGauge().GetValue())
		}
	}
	// Output:
	// isobar_endpoints 0
}
