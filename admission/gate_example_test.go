package admission_test

import (
	"fmt"
	"time"

	"github.com/isobar-go/isobar/admission"
)

// One engine has a queue, its peer is idle. Two requests may go to the peer; more only when an observation has shown what
// these do, and the lease and its cooldown are over.
func ExampleGate() {
	const owner, peer, group = 1, 2, 42
	gate, err := admission.NewGate(admission.SeedConfig{Max: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	observedAt, now := int64(0), int64(100*time.Millisecond)

	survey := gate.Config().Survey()
	survey.Add(admission.SeedFacts{Waiting: 36, Known: true, Fresh: true, Complete: true})
	idle := survey.Add(admission.SeedFacts{Known: true, Fresh: true, Complete: true, BelowCap: true})
	fmt.Println(survey.Result(false), idle)

	for range 3 {
		fmt.Println(gate.Take(peer, group, observedAt, now))
	}
	for second := range int64(3) {
		gate.Observed(peer, (second+1)*int64(time.Second))
	}
	fmt.Println(gate.Check(peer, group, int64(3*time.Second), int64(4*time.Second)))
	fmt.Println(gate.Check(peer, group, int64(8*time.Second), int64(8*time.Second)))
	// Output:
	// seeds-only true
	// ok
	// ok
	// spent
	// cooling
	// ok
}
