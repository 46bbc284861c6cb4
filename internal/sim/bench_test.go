package sim

import "testing"

// One pass of 100 decodes: a token for each, a new block for every sixteenth.
func BenchmarkStep100Decodes(b *testing.B) {
	p, _ := ProfileByName("h100-8b")
	e := mustNew(b, p, Options{})
	var events []Event
	id := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		for len(e.running)+e.waiting.n < 100 {
			if err := e.Submit(Request{ID: id, PromptTokens: 500, OutputTokens: 2000}); err != nil {
				b.Fatal(err)
			}
			id++
		}
		_, events = e.Step(events[:0])
	}
}

// A request of 4096 tokens with 3/4 of them cached, from Submit to Finished.
func BenchmarkWarmRequest(b *testing.B) {
	p, _ := ProfileByName("h100-8b")
	e := mustNew(b, p, Options{})
	blocks := make([]uint64, 256)
	var events []Event
	id := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		for i := range blocks {
			blocks[i] = uint64(i) + 1
			if i >= 192 {
				blocks[i] += id << 20
			}
		}
		if err := e.Submit(Request{ID: id, Blocks: blocks, PromptTokens: 4096, OutputTokens: 1}); err != nil {
			b.Fatal(err)
		}
		id++
		_, events = e.Step(events[:0])
	}
}

func BenchmarkState(b *testing.B) {
	p, _ := ProfileByName("h100-8b")
	e := mustNew(b, p, Options{})
	for id := range uint64(400) {
		if err := e.Submit(Request{ID: id, PromptTokens: 500, OutputTokens: 2000}); err != nil {
			b.Fatal(err)
		}
	}
	for range 40 {
		e.Step(nil)
	}
	b.ReportAllocs()
	for b.Loop() {
		_ = e.State()
		_ = e.WaitingUncached()
	}
}
