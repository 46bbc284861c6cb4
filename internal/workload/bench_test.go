package workload

import (
	"bytes"
	"os"
	"testing"
)

// The whole conversation trace, 12,031 requests, from a gzip file to memory.
func BenchmarkReadMooncake(b *testing.B) {
	path := tracePath(b, "mooncake_conversation.jsonl.gz")
	b.ReportAllocs()
	for b.Loop() {
		if w, err := ReadFile(path, ReadOptions{}); err != nil || len(w) != 12031 {
			b.Fatal(len(w), err)
		}
	}
}

// The whole trace of agents, 44,758 requests of 5.2 G tokens.
func BenchmarkReadSessions(b *testing.B) {
	path := tracePath(b, "agentic_claude_sessions.jsonl.gz")
	b.ReportAllocs()
	for b.Loop() {
		if w, err := ReadFile(path, ReadOptions{}); err != nil || len(w) != 44758 {
			b.Fatal(len(w), err)
		}
	}
}

// One prompt of 12,000 tokens in 8 runs, to 750 ids.
func BenchmarkAppendBlocks12k(b *testing.B) {
	r := Request{PromptTokens: 12_000, OutputTokens: 1}
	for k := range int64(8) {
		r.Segments = append(r.Segments, Segment{First: uint64(k) << 40, Blocks: 94})
	}
	buf := make([]uint64, 0, 1024)
	b.ReportAllocs()
	for b.Loop() {
		buf = r.AppendBlocks(buf[:0])
	}
	if len(buf) != 750 {
		b.Fatal(len(buf))
	}
}

// One request through a closed loop of 100 sessions: Peek, Next, Finished.
func BenchmarkLoopRequest(b *testing.B) {
	w, err := Agentic{Sessions: 100}.Generate()
	if err != nil {
		b.Fatal(err)
	}
	var l *Loop
	b.ReportAllocs()
	for b.Loop() {
		if l != nil {
			if at, ok := l.Peek(); ok {
				r, _ := l.Next()
				l.Finished(&r, at)
				continue
			}
		}
		if l, err = NewLoop(w, LoopConfig{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkGenerateSharedPrefixes(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := (SharedPrefixes{}).Generate(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReadLine(b *testing.B) {
	text, err := os.ReadFile("testdata/mooncake.jsonl")
	if err != nil {
		b.Fatal(err)
	}
	r := &Reader{}
	line, _, _ := bytes.Cut(text, []byte("\n"))
	b.ReportAllocs()
	for b.Loop() {
		var q Request
		if err := r.parseHashIDs(line, &q, 512); err != nil {
			b.Fatal(err)
		}
	}
}
