package prefix_test

import (
	"fmt"

	"github.com/isobar-go/isobar/prefix"
)

// Two prompts share a system prompt; the index knows which replica has how much of the second one.
func Example() {
	scope, err := prefix.NewScope(prefix.Parts{Model: "chat-8b", Tenant: "acme"})
	if err != nil {
		panic(err)
	}
	index, err := prefix.New(prefix.Config{})
	if err != nil {
		panic(err)
	}
	first, second := index.Add(200_000), index.Add(200_000)

	system := []int32{10, 11, 12, 13, 14, 15, 16, 17}
	ask := func(question ...int32) prefix.Sequence {
		q, err := prefix.FromTokens(scope, 4, append(system[:8:8], question...))
		if err != nil {
			panic(err)
		}
		return q
	}
	index.Record(first, ask(1, 2, 3, 4))
	index.Record(second, ask(5, 6, 7, 8))

	held := index.Match(ask(1, 2, 3, 4, 5), nil)
	fmt.Println("first:", held[first.Slot()], "second:", held[second.Slot()])
	// Output:
	// first: 12 second: 8
}

// An engine that reports its cache replaces what was only assumed.
func ExampleIndex_Apply() {
	scope, _ := prefix.NewScope(prefix.Parts{Model: "chat-8b"})
	index, _ := prefix.New(prefix.Config{})
	replica := index.Add(0)
	q, _ := prefix.FromHashes(scope, 16, []uint64{0xa1, 0xb2, 0xc3})

	index.Record(replica, q)
	index.Apply(replica, prefix.Event{Kind: prefix.Stored, Prefix: q.Head(2)})
	fmt.Println(index.Match(q, nil))

	index.Apply(replica, prefix.Event{Kind: prefix.Removed, Prefix: q.Head(2), From: 1})
	fmt.Println(index.Match(q, nil))
	// Output:
	// [32]
	// [16]
}

// A gateway without a tokenizer hashes the text.
func ExampleFromBytes() {
	scope, _ := prefix.NewScope(prefix.Parts{Model: "chat-8b"})
	q, _ := prefix.FromBytes(scope, 4, 4, []byte("You are a helpful assistant. Answer briefly."))
	fmt.Println(q.Blocks(), "blocks,", q.Tokens(), "tokens")
	// Output:
	// 2 blocks, 8 tokens
}

// Parts are framed, so that their borders count.
func ExampleNewScope() {
	a, _ := prefix.NewScope(prefix.Parts{Model: "ab", Tenant: "c"})
	b, _ := prefix.NewScope(prefix.Parts{Model: "a", Tenant: "bc"})
	fmt.Println(a == b)

	_, err := prefix.NewScope(prefix.Parts{Model: "m", AdapterID: "sql"})
	fmt.Println(err)
	// Output:
	// false
	// prefix: AdapterID "sql" and AdapterDigest "" go together, one is empty
}
