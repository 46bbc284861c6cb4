package cases_test

import (
	"fmt"
	"strings"

	"github.com/isobar-go/isobar/internal/cases"
)

func Example() {
	file, err := cases.Parse([]byte(`# The busy engine loses.
setup
endpoint a prefill-rate=8000 kv-capacity=100000
endpoint b prefill-rate=8000 kv-capacity=100000
observe a running=38 waiting=36 kv=0.12
observe b running=0 waiting=0 kv=0
----

route prompt=1000 out=200
----
a
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, d := range file.Run().Differences {
		fmt.Print(d)
	}
	// Output:
	// line 9: route prompt=1000 out=200
	//   - a
	//   + b
}

func ExampleMachine() {
	m := cases.NewMachine()
	m.Run("endpoint a")
	fmt.Println(strings.Join(m.Run("route n=3 prompt=100 out=10"), "\n"))
	fmt.Println(strings.Join(m.Run("load a"), "\n"))
	// Output:
	// a=3
	// requests=3 prefill=300 decode=30 kv=330 unobserved=3
}
