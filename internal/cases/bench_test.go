package cases

import (
	"os"
	"testing"
)

// BenchmarkFile is parsing and running one ordinary case.
func BenchmarkFile(b *testing.B) {
	data, err := os.ReadFile("testdata/why-withheld-by-waiting.case")
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		f, err := Parse(data)
		if err != nil {
			b.Fatal(err)
		}
		if r := f.Run(); len(r.Differences) > 0 {
			b.Fatal(r.Differences)
		}
	}
}
