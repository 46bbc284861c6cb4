package admission_test

import (
	"fmt"
	"time"

	"github.com/isobar-go/isobar/admission"
)

func ExampleQueue() {
	q, err := admission.NewQueue[string](admission.QueueConfig{Max: 3, Classes: 2, Timeout: 5 * time.Second})
	if err != nil {
		panic(err)
	}
	const interactive, batch = 0, 1
	now := int64(0) // nanoseconds on a scale of the caller's

	push := func(name string, ask admission.Ask) {
		displaced, err := q.Push(&admission.Waiter[string]{Value: name}, ask, now)
		for _, w := range displaced {
			fmt.Println(name, "displaces", w.Value)
		}
		if err != nil {
			fmt.Println(name+":", err)
		}
	}
	push("report", admission.Ask{Rank: batch, Tenant: 1, Group: 7, Cost: 9000})
	push("index", admission.Ask{Rank: batch, Tenant: 1, Group: 8, Cost: 500})
	push("mail", admission.Ask{Rank: batch, Tenant: 2, Group: 8, Cost: 500})
	push("chat", admission.Ask{Rank: interactive, Tenant: 2, Group: 8, Cost: 300})
	push("more", admission.Ask{Rank: batch, Tenant: 1, Group: 8, Cost: 1})

	// Something has come free: room for whatever is not of group 7, twice.
	room := 2
	q.Begin(now)
	for w := q.Next(); w != nil && room > 0; w = q.Next() {
		if w.Ask().Group == 7 {
			q.SkipGroup(7)
			continue
		}
		q.Granted(w, now)
		fmt.Println(w.Value, "granted")
		room--
	}

	now += int64(5 * time.Second)
	for w, cause := q.Expired(now); w != nil; w, cause = q.Expired(now) {
		fmt.Println(w.Value, cause)
	}
	// Output:
	// chat displaces mail
	// more: admission: queue is full
	// chat granted
	// index granted
	// report timed out
}

func ExampleShares() {
	shares, err := admission.NewShares(admission.SharesConfig{Reserve: [admission.MaxClasses]float64{0.5}})
	if err != nil {
		panic(err)
	}
	const interactive, batch = 0, 1
	capacity := admission.Amount{Requests: 4}
	fmt.Println("nobody around:", shares.Admits(batch, 9000, capacity, 0))

	_ = shares.Take(interactive, 300, 0)
	_ = shares.Take(interactive, 300, 0)
	_ = shares.Give(interactive, 300, 0)
	_ = shares.Give(interactive, 300, 0)
	_ = shares.Take(batch, 9000, 0)
	_ = shares.Take(batch, 9000, 0)
	fmt.Println("two just left:", shares.Admits(batch, 9000, capacity, 0), shares.Admits(interactive, 300, capacity, 0))
	fmt.Println("minutes later:", shares.Admits(batch, 9000, capacity, int64(3*time.Minute)))
	// Output:
	// nobody around: true
	// two just left: false true
	// minutes later: true
}
