package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/isobar-go/isobar/internal/experiment"
	"github.com/isobar-go/isobar/router"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// play runs the program and returns its status and what it wrote.
func play(args ...string) (status int, stdout, stderr string) {
	var out, err bytes.Buffer
	status = run(context.Background(), args, &out, &err)
	return status, out.String(), err.String()
}

func TestFlagsRefuse(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"x", `replay: unexpected argument "x"`},
		{"-nothing", "flag provided but not defined"},
		{"-policies best", `replay: flag -policies = "best": experiment: policy "best" is not one of pressure, `},
		{"-policies lpwl,lpwl", "lpwl is there twice"},
		{"-policies=", "replay: flag -policies is empty"},
		{"-workloads chess", `"chess" is not one of long-prompts, `},
		{"-loads 80,zero", `"zero" is not a percentage in 1 to 10000`},
		{"-loads 0", `"0" is not a percentage`},
		{"-engines 0", `replay: flag -engines = "0": "0" is not a whole number in 1 to 4096`},
		{"-profiles abacus", `profile "abacus" is not one of`},
		{"-gateways 8,8", "8 is there twice"},
		{"-age 0s", `replay: flag -age = "0s": "0s" is not a time in 1ms to 1h`},
		{"-seeds 0", "replay: flag -seeds = 0 is not in"},
		{"-oracle-seeds 0", "replay: flag -oracle-seeds = 0 is below 1"},
		{"-requests -1", "replay: flag -requests = -1"},
		{"-parallel -1", "replay: flag -parallel = -1 is negative"},
		{"-jitter 1s", "go with -trace"},
		{"-trace x -workloads agentic", "takes the place of -workloads"},
		{"-trace x -guess 5", "replay: flag -guess = 5 is not in 0 to 4"},
		{"-trace x -session-rate 0", "replay: flag -session-rate = 0"},
		{"-trace x -jitter -1s", "replay: flag -jitter = -1s is negative"},
		{"-weights interference=1", "go with -against"},
		{"-against x -quick", "replay: flag -quick means nothing beside -against"},
		{"-against x -policy best", `replay: flag -policy = "best": router: policy "best" is not one of`},
		{"-against x -weights interference", `"interference" is not name=value`},
		{"-against x -weights charm=1", `"charm" is not one of displacement, interference, kv-pressure, uncertainty, wait`},
		{"-against x -weights interference=-1", `interference: "-1" is not a number in 0 to 1e9`},
		{"-against x -weights interference=1e8", "Weights.Interference = 1e+08 is above"},
		{"-against x -weights interference=1,interference=2", `"interference" is there twice`},
		{"-against x -bounds waiting=1.5", `waiting: "1.5" is not a whole number`},
		{"-against x -bounds lead=5", `lead: "5" is not a time`},
		{"-against x -n -1", "replay: flag -n = -1 is negative"},
	} {
		status, stdout, stderr := play(strings.Fields(c.args)...)
		assert.Equal(t, "", stdout, c.args)
		if strings.Contains(c.args, "abacus") { // a profile is looked at when the fleet is made
			assert.Equal(t, 1, status, c.args)
		} else {
			assert.Equal(t, 2, status, c.args)
		}
		assert.Contains(t, stderr, c.want)
	}
	status, _, stderr := play("-h")
	assert.Equal(t, 0, status)
	assert.Contains(t, stderr, "-against")
}

func TestSettings(t *testing.T) {
	o, err := parse(strings.Fields("-against x -weights interference=0.5,displacement=0 -bounds waiting=0,lead=2s,give-up-ratio=1"), &bytes.Buffer{})
	require.NoError(t, err)
	assert.Equal(t, 0.5, o.router.Weights.Interference)
	assert.EqualValues(t, router.None, o.router.Weights.Displacement, "0 is off")
	assert.Equal(t, router.None, o.router.Bounds.MaxWaiting)
	assert.Equal(t, router.GiveUp{Ratio: 1, Extra: router.Config{}.WithDefaults().Bounds.GiveUp.Extra}, o.router.Bounds.GiveUp)

	o, err = parse([]string{"-quick", "-loads", "60,80%", "-engines", "2, 4"}, &bytes.Buffer{})
	require.NoError(t, err)
	assert.Equal(t, []float64{0.6, 0.8}, o.loads)
	assert.Equal(t, []int{2, 4}, o.engines)
	assert.Equal(t, []int{3, 1, 600}, []int{o.seeds, o.oracleSeeds, o.requests})
}

func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, name := range []string{"report.html", "report.json", "figures.csv", "runs.csv"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		out[name] = string(b)
	}
	return out
}

// The same flags make the same files, however many runs go on at a time; receipts decided again come out as they were.
func TestCompare(t *testing.T) {
	one, two := t.TempDir(), t.TempDir()
	receipts := filepath.Join(one, "receipts.jsonl")
	args := strings.Fields("-workloads shared-prefixes,interactive-batch -requests 400 -engines 2 -seeds 2 -loads 80,110 -oracle-seeds 1 -ablation " +
		"-policies pressure,round-robin,lpwl,oracle -watch -full")
	status, stdout, stderr := play(append(args, "-out", one, "-parallel", "1", "-receipts", receipts)...)
	require.Equal(t, 0, status, stderr)
	assert.Empty(t, stderr, "no bar where nobody looks")
	assert.NotContains(t, stdout, "\x1b")
	assert.Contains(t, stdout, "All 4 places together")
	assert.Contains(t, stdout, "The report is "+filepath.Join(one, "report.html"))
	status, _, stderr = play(append(args, "-out", two, "-parallel", "3")...)
	require.Equal(t, 0, status, stderr)
	first, second := files(t, one), files(t, two)
	for name := range first {
		assert.True(t, first[name] == second[name], "%s differs", name)
	}
	assert.NotContains(t, first["report.html"], one, "the page says nothing of where it lies")
	var data struct {
		Rows []struct {
			Workload, Policy, Class string
			Load                    float64
			Figures                 map[string]any
		}
	}
	require.NoError(t, json.Unmarshal([]byte(first["report.json"]), &data))
	assert.Contains(t, data.Rows[0].Figures, "choice_regret")
	assert.Contains(t, data.Rows[0].Figures, "regret")

	status, stdout, stderr = play("-against", receipts, "-n", "1")
	require.Equal(t, 0, status, stderr)
	assert.Contains(t, stdout, "decisions of pressure made again by pressure")
	status, stdout, stderr = play("-against", receipts, "-policy", "least-load", "-n", "1", "-out", two)
	require.Equal(t, 0, status, stderr)
	assert.Contains(t, stdout, "not by cost: the rule of least-load")
	assert.FileExists(t, filepath.Join(two, "against.json"))
}

// Plots show one run of each policy, at the greatest load below saturation.
func TestKeeper(t *testing.T) {
	o, err := parse(strings.Fields("-workloads heavy-tail -loads 60,95,110 -engines 2,4 -gateways 2,1"), &bytes.Buffer{})
	require.NoError(t, err)
	g, _, err := plan(o)
	require.NoError(t, err)
	keep := keeper(&g)
	at := experiment.Cell{Seed: 1, Policy: "lpwl", Group: experiment.Group{
		Workload: "heavy-tail", Fleet: "2 x h100-8b", Load: 0.95, Period: time.Second, Gateways: 2,
	}}
	assert.True(t, keep(at))
	for _, change := range []func(c *experiment.Cell){
		func(c *experiment.Cell) { c.Load = 1.1 }, func(c *experiment.Cell) { c.Load = 0.6 }, func(c *experiment.Cell) { c.Seed = 2 },
		func(c *experiment.Cell) { c.Gateways = 1 }, func(c *experiment.Cell) { c.Fleet = "4 x h100-8b" },
	} {
		other := at
		change(&other)
		assert.False(t, keep(other), "%+v", other)
	}
	g.Loads = []float64{1.2, 1.1}
	at.Load = 1.1
	assert.True(t, keeper(&g)(at), "the least, where all are above")
}

func TestTrace(t *testing.T) {
	dir := t.TempDir()
	var b strings.Builder
	for i := range 200 {
		fmt.Fprintf(&b, `{"timestamp": %d, "input_length": %d, "output_length": 60, "hash_ids": [1, %d]}`+"\n", 100*i, 600+i, 2+i%7*1000+i)
	}
	file := filepath.Join(dir, "talk.jsonl")
	require.NoError(t, os.WriteFile(file, []byte(b.String()), 0o600))
	args := strings.Fields("-engines 2 -profiles h100-8b+a100-8b -seeds 2 -policies pressure,round-robin -gateways 1,2 -age 100ms,1s -jitter 100ms -guess 0.5 -out " + dir)
	status, stdout, stderr := play(append(args, "-trace", file, "-requests", "150")...)
	require.Equal(t, 0, status, stderr)
	assert.Contains(t, stdout, "All 8 places together")
	page := files(t, dir)["report.html"]
	assert.Contains(t, page, "talk.jsonl (mooncake): 150 requests")
	assert.Contains(t, page, "2 x h100-8b/a100-8b")

	require.NoError(t, os.WriteFile(file, []byte(b.String()+"{\n"), 0o600))
	status, _, stderr = play(append(args, "-trace", file)...)
	assert.Equal(t, 1, status)
	assert.Contains(t, stderr, "replay: flag -trace: workload: talk.jsonl:201: ")
	status, _, stderr = play("-trace", filepath.Join(dir, "nothing"))
	assert.Equal(t, 1, status)
	assert.Contains(t, stderr, "replay: flag -trace: ")
	status, _, stderr = play("-against", filepath.Join(dir, "nothing"))
	assert.Equal(t, 1, status)
	assert.Contains(t, stderr, "replay: flag -against: ")
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	dir := t.TempDir()
	var out, stderr bytes.Buffer
	assert.Equal(t, 1, run(ctx, []string{"-quick", "-out", dir}, &out, &stderr))
	assert.Contains(t, stderr.String(), context.Canceled.Error())
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, left, "nothing half done")
}
