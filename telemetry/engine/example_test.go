package engine_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/isobar-go/isobar/telemetry"
	"github.com/isobar-go/isobar/telemetry/engine"
)

// The answer to a poll goes from the parser into the store; a wrong answer is a failed poll.
func ExampleParse() {
	store := telemetry.NewStore(telemetry.StoreConfig{})
	requested := time.Unix(1_700_000_000, 0)
	for _, body := range []string{
		"vllm:num_requests_running{engine=\"0\"} 27\nvllm:num_requests_running{engine=\"1\"} 5\n",
		`{"detail": "Not Found"}`,
	} {
		now := requested.Add(10 * time.Millisecond)
		snapshot, err := engine.Parse(engine.VLLM, []byte(body), requested)
		if err != nil {
			store.ScrapeError(now, err)
			fmt.Println(err, errors.Is(err, engine.ErrNotPrometheus))
			continue
		}
		store.Observe(now, snapshot, 0)
	}
	running, _ := store.State().Running.Value()
	fmt.Println("running:", running, "ranks:", len(store.State().Ranks))
	_, known := store.State().Waiting.Value()
	fmt.Println("waiting known:", known)
	// Output:
	// engine: not a Prometheus text document: it is JSON true
	// running: 32 ranks: 2
	// waiting known: false
}

// Where nobody said what kind of engine it is, its first answer tells, and also what it has to offer.
func ExampleDetect() {
	body := []byte("llamacpp:requests_processing 2\nllamacpp:requests_deferred 1\nllamacpp:prompt_tokens_total 700\n")
	kind, err := engine.Detect(body)
	if err != nil {
		fmt.Println(err)
		return
	}
	report, err := engine.Parser{Kind: kind}.Report(bytes.NewReader(body), time.Unix(1_700_000_000, 0))
	if err != nil {
		fmt.Println(err)
		return
	}
	has := report.Signals()
	fmt.Println("kind:", kind)
	fmt.Println("has:", has)
	for _, s := range engine.Signals(kind) {
		if !slices.Contains(has, s) {
			fmt.Println("could have:", s)
		}
	}
	fmt.Println("KV figures mean:", kind.KVMeaning())
	// Output:
	// kind: llamacpp
	// has: [running waiting]
	// could have: kv
	// could have: kv-used
	// KV figures mean: occupied
}

// A restart shows in the counters of an engine that prints no start time.
func ExampleLives() {
	var lives engine.Lives // one for each endpoint
	store := telemetry.NewStore(telemetry.StoreConfig{})
	now := time.Unix(1_700_000_000, 0)
	for _, processed := range []int{700, 900, 20} {
		body := fmt.Sprintf("llamacpp:requests_processing 2\nllamacpp:prompt_tokens_total %d\n", processed)
		report, err := engine.Parser{Kind: engine.LlamaCPP}.Report(strings.NewReader(body), now)
		if err != nil {
			fmt.Println(err)
			return
		}
		lives.Apply(&report)
		res := store.Observe(now, report.Snapshot, 0)
		fmt.Println(report.Snapshot.Epoch, res.EpochChanged)
		now = now.Add(time.Second)
	}
	// Output:
	// life-1 false
	// life-1 false
	// life-2 true
}

// The request asks for the report, and the response brings it.
func ExampleParseLoadHeader() {
	request := http.Header{}
	request.Set(engine.LoadFormatHeader, engine.LoadText)
	sent := time.Unix(1_700_000_000, 0)
	response := http.Header{"Endpoint-Load-Metrics": {"TEXT named_metrics.kv_cache_usage_perc=0.25, named_metrics.num_requests_waiting=3"}}

	snapshot, err := engine.ParseLoadHeader(response.Get(engine.LoadHeader), sent)
	if err != nil {
		fmt.Println(err)
		return
	}
	waiting, _ := snapshot.Waiting.Value()
	fmt.Println("waiting:", waiting, "tells:", engine.Told(snapshot))
	// Output:
	// waiting: 3 tells: [waiting kv]
}
