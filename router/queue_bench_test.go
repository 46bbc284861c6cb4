package router_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/router"
)

// What a queue costs while nobody waits in it.
func BenchmarkReserveReleaseQueueOn(b *testing.B) {
	for _, n := range []int{8, 64, 512} {
		for _, queue := range []int{0, 1024} {
			b.Run(fmt.Sprintf("endpoints=%d/queue=%d", n, queue), func(b *testing.B) {
				p, prompts := benchPool(b, n, router.Config{
					Freshness: router.Freshness{FreshFor: time.Hour, StaleAfter: 2 * time.Hour, Decay: time.Hour}, Queue: router.Queue{Max: queue},
				})
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					l, err := p.Reserve(context.Background(), router.Request{Model: "m", Prefix: prompts[i%100], PromptTokens: 2048, ExpectedOutputTokens: 200})
					if err != nil {
						b.Fatal(err)
					}
					l.Done(router.Usage{})
					if i++; i%pollEvery == 0 {
						observeAll(b, p, n, i, time.Now)
					}
				}
			})
		}
	}
}

// How fast a request is refused when every place is taken and the queue is full: of requests that are alike, of a hundred models, and
// with deadlines. The p99 is in ms.
func BenchmarkOverload(b *testing.B) {
	for _, kind := range []string{"alike", "models", "deadlines"} {
		for _, n := range []int{8, 64} {
			b.Run(fmt.Sprintf("%s/endpoints=%d", kind, n), func(b *testing.B) {
				p, _ := benchPool(b, n, router.Config{Caps: admission.Caps{Aggregate: 1}, Queue: router.Queue{Max: 1024, Timeout: time.Hour}})
				deadline := time.Now().Add(24 * time.Hour)
				req := func(i int) (r router.Request) {
					switch kind {
					case "models":
						r.Model = fmt.Sprint("m", i%100)
					case "deadlines":
						r.Deadline = deadline
					}
					return r
				}
				for i := 0; ; i++ {
					if _, err := p.Enqueue(req(i)); errors.Is(err, router.ErrQueueFull) {
						break
					}
				}
				took := make([]time.Duration, 0, 1<<20)
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					start := time.Now()
					if _, err := p.Reserve(context.Background(), req(i)); !errors.Is(err, router.ErrQueueFull) {
						b.Fatal(err)
					}
					if len(took) < cap(took) {
						took = append(took, time.Since(start))
					}
				}
				slices.Sort(took)
				b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e6, "p99-ms")
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "refusals/s")
			})
		}
	}
}

// One lease ends and one waiter gets its place, with a thousand waiting: of one kind, of many that fit nowhere, and with deadlines.
func BenchmarkHandOff(b *testing.B) {
	for _, kind := range []string{"alike", "models", "tenants", "deadlines"} {
		b.Run(kind, func(b *testing.B) {
			p, err := router.New(router.Config{Caps: admission.Caps{Endpoint: 1}, Queue: router.Queue{Max: 2048, Timeout: time.Hour, WaitForEndpoints: true}})
			if err != nil {
				b.Fatal(err)
			}
			if err := p.SetEndpoints(plain("a", "b", "c", "d", "e", "f", "g", "h")); err != nil {
				b.Fatal(err)
			}
			var others []string
			for _, id := range []string{"b", "c", "d", "e", "f", "g", "h"} {
				others = append(others, id)
				if _, err := p.Enqueue(router.Request{Exclude: []string{"a"}, ExcludeHard: true}); err != nil {
					b.Fatal(err)
				}
			}
			req := func(i int) router.Request {
				r := router.Request{Exclude: others, ExcludeHard: true}
				switch kind {
				case "models":
					r.Model = fmt.Sprint("m", i)
				case "tenants":
					r.Tenant = fmt.Sprint("t", i%100)
				case "deadlines":
					r.Deadline = time.Now().Add(24 * time.Hour)
				}
				return r
			}
			last, err := p.Enqueue(req(0))
			if err != nil {
				b.Fatal(err)
			}
			var tickets []*router.Ticket
			for i := range 1000 {
				ticket, err := p.Enqueue(req(i))
				if err != nil {
					b.Fatal(err)
				}
				tickets = append(tickets, ticket)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				l, err := last.Lease()
				if err != nil || l == nil {
					b.Fatal("not served: ", err)
				}
				ticket, err := p.Enqueue(req(i))
				if err != nil {
					b.Fatal(err)
				}
				tickets = append(tickets, ticket)
				l.Done(router.Usage{})
				for j, w := range tickets {
					if done(w) {
						last = w
						tickets = slices.Delete(tickets, j, j+1)
						break
					}
				}
			}
		})
	}
}
