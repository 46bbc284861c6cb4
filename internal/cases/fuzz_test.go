package cases

import (
	"os"
	"strings"
	"testing"
)

// tiny bounds keep one input of the fuzzer fast.
var tiny = limits{requests: 20, tokens: 1 << 11, work: 1 << 13, parallel: 1 << 12}

func runTiny(f *File) Result {
	m := NewMachine()
	m.limits = tiny
	return f.run(m)
}

// FuzzCase runs any file that can be parsed. Nothing panics, and a rewritten file passes and stays as it is.
func FuzzCase(f *testing.F) {
	for _, path := range caseFiles(f) {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte("setup\nendpoint a block=7\nendpoint b block=1 role=decode\nkv-event a stored prefix=x:30 tenant=t\n----\n\nmatch prefix=x:30 tenant=t\n----\n"))
	f.Add([]byte("endpoint a prefill-rate=1e-300 adapter-load-ms=0\n----\n\nroute n=2 prompt=(1) adapter=x@\n----\n----\n\n----\n----\n"))
	f.Add([]byte("pool bounds.give-up=nan+1s weights.uncertainty=-1 fail-closed replicas=9223372036854775807\n----\n\nspread n=3 tolerance=0 end among=a\n----\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 8<<10 {
			return
		}
		file, err := Parse(data)
		if err != nil {
			return
		}
		result := runTiny(file)
		if strings.Contains(string(data), "parallel") { // who comes first is left to chance
			return
		}
		text := file.Rewrite(result)
		again, err := Parse(text)
		if err != nil {
			t.Fatalf("the rewritten file is not in the format: %v\n%s", err, text)
		}
		second := runTiny(again)
		for _, d := range second.Differences {
			t.Errorf("the rewritten file fails: %v\n%s", d, text)
		}
		if string(again.Rewrite(second)) != string(text) {
			t.Errorf("the rewritten file changes:\n%s", text)
		}
	})
}
