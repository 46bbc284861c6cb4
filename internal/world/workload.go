package world

import (
	"fmt"
	"strconv"

	"github.com/isobar-go/isobar/internal/workload"
	"github.com/isobar-go/isobar/router"
)

// FromWorkload is a source that plays one of package workload. It belongs to one run, and so does what it plays.
func FromWorkload(src workload.Source) Source {
	return &played{Source: src, open: map[int64]workload.Request{}}
}

// played adapts a workload; open holds what its Finished looks at.
type played struct {
	workload.Source
	open map[int64]workload.Request
	next int64
}

func (p *played) Next() (Arrival, bool) {
	r, ok := p.Source.Next()
	if !ok {
		return Arrival{}, false
	}
	key := p.next
	p.next++
	p.open[key] = workload.Request{ID: r.ID, Session: r.Session, Arrival: r.Arrival}
	a := Arrival{
		At: r.Arrival, Blocks: r.AppendAll(nil), OutputTokens: r.OutputTokens, Key: key, Label: r.Label,
		Ask: Ask{
			PromptTokens: r.PromptTokens, MaxOutputTokens: r.MaxOutputTokens, ExpectedOutputTokens: r.ExpectedOutputTokens,
			Adapter: router.Adapter{ID: r.Adapter, Digest: r.AdapterDigest}, Tenant: r.Tenant, Class: r.Class,
			Deadline: r.Deadline,
		},
	}
	if r.Session != 0 {
		a.Ask.Session = strconv.FormatUint(r.Session, 10)
	}
	return a, true
}

func (p *played) Finished(e End) {
	if r, open := p.open[e.Key]; open {
		delete(p.open, e.Key)
		p.Source.Finished(&r, e.At)
	}
}

func (p *played) Err() error {
	if err := p.Source.Err(); err != nil {
		return fmt.Errorf("world: %w", err)
	}
	return nil
}
