package workload

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fuzzRead holds whatever a reader accepts to what it promises. Chains are not checked: the ids are the trace's own word.
func fuzzRead(f *testing.F, format Format, files ...string) {
	for _, name := range files {
		b, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(b))
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, separate := range []bool{false, true} {
			r, err := NewReader(strings.NewReader(text), ReadOptions{Format: format, Name: "fuzz", MaxLine: 4096, SeparateSessions: separate})
			if err != nil {
				mustName(t, err)
				return
			}
			for {
				q, ok := r.Next()
				if !ok {
					break
				}
				if err := q.Validate(); err != nil {
					t.Fatal(err)
				}
				if q.PromptTokens > 1<<22 {
					continue
				}
				if n := int64(len(q.AppendAll(nil))); n != q.PromptBlocks() || n > q.PromptTokens/BlockTokens {
					t.Fatalf("%d ids, %d blocks, %d tokens", n, q.PromptBlocks(), q.PromptTokens)
				}
			}
			if err := r.Err(); err != nil {
				mustName(t, err)
			}
			if _, ok := r.Next(); ok {
				t.Fatal("a request after the end")
			}
		}
	})
}

func mustName(t *testing.T, err error) {
	t.Helper()
	if !strings.HasPrefix(err.Error(), "workload: fuzz:") {
		t.Fatalf("an error without its place: %v", err)
	}
}

func FuzzMooncake(f *testing.F) { fuzzRead(f, FormatMooncake, "mooncake.jsonl") }

func FuzzBlocks16(f *testing.F) { fuzzRead(f, FormatBlocks16, "blocks16.jsonl") }

func FuzzAzure(f *testing.F) { fuzzRead(f, FormatAzure, "azure.csv", "azure_dated.csv") }

func FuzzSessions(f *testing.F) { fuzzRead(f, FormatSessions, "sessions.jsonl") }

func FuzzAuto(f *testing.F) {
	fuzzRead(f, FormatAuto, "mooncake.jsonl", "blocks16.jsonl", "azure.csv", "azure_dated.csv", "sessions.jsonl")
}
