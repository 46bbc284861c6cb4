package kvevents_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/isobar-go/isobar/prefix"
	"github.com/isobar-go/isobar/telemetry/kvevents"
)

// cacheView is a Sink for one endpoint. A router.Pool is a Sink for all of its endpoints.
type cacheView struct {
	index  *prefix.Index
	holder prefix.Holder
}

func (v cacheView) ApplyKV(_ string, e prefix.Event) error {
	v.index.Apply(v.holder, e)
	return nil
}

func (v cacheView) ClearPrefixes(string) error {
	v.index.Clear(v.holder)
	return nil
}

// An index learns from an engine's events what its cache holds. The batch here is written by hand; an engine sends its
// like over ZeroMQ.
func ExampleApplier() {
	index, err := prefix.New(prefix.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	view := cacheView{index, index.Add(0)}
	base, err := prefix.NewScope(prefix.Parts{Model: "m"})
	if err != nil {
		fmt.Println(err)
		return
	}
	events, err := kvevents.New(kvevents.Config{ID: "a", Sink: view, BlockTokens: 4, Base: base})
	if err != nil {
		fmt.Println(err)
		return
	}

	// [ts, [["BlockStored", [hash, hash], parent, token_ids, block_size, lora_id]], rank]
	b := msgp.AppendFloat64(msgp.AppendArrayHeader(nil, 3), 1.7e9)
	b = msgp.AppendString(msgp.AppendArrayHeader(msgp.AppendArrayHeader(b, 1), 6), "BlockStored")
	b = msgp.AppendInt64(msgp.AppendInt64(msgp.AppendArrayHeader(b, 2), -77), 1234)
	b = msgp.AppendArrayHeader(msgp.AppendNil(b), 8)
	for token := range int64(8) {
		b = msgp.AppendInt64(b, token)
	}
	b = msgp.AppendNil(msgp.AppendNil(msgp.AppendInt64(b, 4)))
	if err := events.Apply(0, 0, b); err != nil {
		fmt.Println(err)
		return
	}

	prompt, err := prefix.FromTokens(base, 4, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(index.Match(prompt, nil)[view.holder.Slot()], "tokens")
	// A batch is missing: whatever it said may have been that blocks are gone.
	if err := events.Apply(0, 2, msgp.AppendNil(msgp.AppendArrayHeader(msgp.AppendInt(msgp.AppendArrayHeader(nil, 3), 0), 0))); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(index.Match(prompt, nil)[view.holder.Slot()], "tokens")
	fmt.Println(events.Stats().Gaps, "gap")
	// Output:
	// 8 tokens
	// 0 tokens
	// 1 gap
}

// A Subscriber listens for as long as its context lasts.
func ExampleSubscriber() {
	base, err := prefix.NewScope(prefix.Parts{Model: "m"})
	if err != nil {
		fmt.Println(err)
		return
	}
	index, err := prefix.New(prefix.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	view := cacheView{index, index.Add(0)}
	events, err := kvevents.New(kvevents.Config{ID: "a", Sink: view, BlockTokens: 16, Base: base, Sources: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	listener, err := kvevents.NewSubscriber(events, kvevents.SubscriberConfig{Sources: []kvevents.Source{
		{Address: "tcp://127.0.0.1:5557", Replay: "tcp://127.0.0.1:6557"}, // data-parallel rank 0
		{Address: "tcp://127.0.0.1:5558", Replay: "tcp://127.0.0.1:6558"}, // data-parallel rank 1
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	fmt.Println(errors.Is(listener.Run(ctx), context.DeadlineExceeded))
	// Output: true
}
