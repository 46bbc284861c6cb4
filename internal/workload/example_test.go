package workload_test

import (
	"fmt"
	"strings"
	"time"

	"github.com/isobar-go/isobar/internal/workload"
)

// A trace is read line by line; two prompts that begin alike have equal ids.
func ExampleNewReader() {
	trace := `{"timestamp":0,"input_length":1100,"output_length":20,"hash_ids":[0,1,2]}
{"timestamp":1500,"input_length":1536,"output_length":7,"hash_ids":[0,1,3]}
`
	r, err := workload.NewReader(strings.NewReader(trace), workload.ReadOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	w, err := workload.ReadAll(r)
	if err != nil {
		fmt.Println(err)
		return
	}
	a, b := w[0].AppendBlocks(nil), w[1].AppendBlocks(nil)
	same := 0
	for same < len(a) && a[same] == b[same] {
		same++
	}
	fmt.Println(r.Format(), len(a), len(b), "blocks,", same*workload.BlockTokens, "tokens in common")
	fmt.Println(workload.Summarize(w))
	// Output:
	// mooncake 68 96 blocks, 1024 tokens in common
	// 2 requests, 0 sessions, 2 s, 0.67/s; in 1318/1100/1536/1536, out 14/7/20/20 (mean/p50/p90/p99); hit 38.8%; gap CV 0.00
}

// A bad line is named, and nothing of the trace is used.
func ExampleReadAll() {
	trace := `{"timestamp":0,"input_length":512,"output_length":20,"hash_ids":[0]}
{"timestamp":9,"input_length":512,"output_length":20,"hash_ids":[0,1,2]}
`
	r, err := workload.NewReader(strings.NewReader(trace), workload.ReadOptions{Name: "mine.jsonl"})
	if err != nil {
		fmt.Println(err)
		return
	}
	w, err := workload.ReadAll(r)
	fmt.Println(len(w), err)
	// Output:
	// 0 workload: mine.jsonl:2: hash_ids has 3 blocks of 512 tokens, input_length is 512
}

// A simulation takes requests when their time has come and says when they end; in a closed loop, that brings the next.
func ExampleNewLoop() {
	w := workload.Workload{
		{ID: 0, Session: 1, PromptTokens: 100, OutputTokens: 10},
		{ID: 1, Session: 1, Turn: 1, Think: 2 * time.Second, PromptTokens: 150, OutputTokens: 10},
		{ID: 2, Arrival: 500 * time.Millisecond, PromptTokens: 20, OutputTokens: 10},
	}
	source, err := workload.NewLoop(w, workload.LoopConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for {
		if _, ok := source.Peek(); !ok {
			break
		}
		r, _ := source.Next()
		end := r.Arrival + 300*time.Millisecond
		fmt.Println("request", r.ID, "from", r.Arrival, "to", end)
		source.Finished(&r, end)
	}
	fmt.Println(source.Err())
	// Output:
	// request 0 from 0s to 300ms
	// request 2 from 500ms to 800ms
	// request 1 from 2.3s to 2.6s
	// <nil>
}

// Two kinds of traffic at once, with labels to report them apart.
func ExampleNewMix() {
	chats, err := workload.TinyChats{Load: workload.Load{Requests: 300, Rate: 30}}.Generate()
	if err != nil {
		fmt.Println(err)
		return
	}
	agents, err := workload.Agentic{Sessions: 5, Turns: 3}.Generate()
	if err != nil {
		fmt.Println(err)
		return
	}
	loop, err := workload.NewLoop(workload.Labelled(agents, "agents"), workload.LoopConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	mix, err := workload.NewMix(workload.NewOpen(workload.Labelled(chats, "chats").Stream()), loop)
	if err != nil {
		fmt.Println(err)
		return
	}
	count := map[string]int{}
	for r, ok := mix.Next(); ok; r, ok = mix.Next() {
		count[r.Label]++
		mix.Finished(&r, r.Arrival+time.Second)
	}
	fmt.Println(count["chats"] == len(chats), count["agents"] == len(agents), mix.Err())
	// Output:
	// true true <nil>
}

// A slow clock is smoothed, then time runs twice as fast.
func ExampleJitter() {
	w := workload.Workload{
		{ID: 0, PromptTokens: 1, OutputTokens: 1},
		{ID: 1, PromptTokens: 1, OutputTokens: 1},
		{ID: 2, Arrival: 3 * time.Second, PromptTokens: 1, OutputTokens: 1},
	}
	w, err := workload.Jitter(w, 3*time.Second, 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	w, err = workload.Scale(w, 2)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(len(w), w[0].Arrival != w[1].Arrival, w[2].Arrival < 3*time.Second)
	// Output:
	// 3 true true
}

// A scenario is everything a simulation needs.
func ExampleBuildScenario() {
	s, err := workload.BuildScenario("slowed", workload.Size{Requests: 600})
	if err != nil {
		fmt.Println(err)
		return
	}
	i := s.Incidents[0]
	fmt.Println(len(s.Requests), "requests; endpoint", i.Endpoint, i.Kind, "by", i.Factor)
	// Output:
	// 600 requests; endpoint 0 slow by 3
}
