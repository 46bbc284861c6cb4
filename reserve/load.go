package reserve

import "fmt"

// maxTokens bounds one figure of a Cost, so that no sum over fewer than eight million leases can overflow.
const maxTokens = 1 << 40

// Cost is what one request takes from an engine, in tokens, besides the one request it is. Each figure is in
// [0, 2^40]; the zero value costs nothing but the request itself. It is a plain value: copies are independent and may
// be used by any goroutine.
type Cost struct {
	// Prefill is the number of prompt tokens that are not cached, held until the first token.
	Prefill int64
	// Decode is the expected number of output tokens; it shrinks with the tokens generated, never below zero.
	Decode int64
	// KV is the number of KV cache tokens, held unchanged until the end, even if more output than expected comes.
	KV int64
}

func (c Cost) validate() error {
	for _, f := range [...]struct {
		name string
		n    int64
	}{{"Prefill", c.Prefill}, {"Decode", c.Decode}, {"KV", c.KV}} {
		if f.n < 0 {
			return fmt.Errorf("reserve: Cost.%s is %d, must not be negative", f.name, f.n)
		}
		if f.n > maxTokens {
			return fmt.Errorf("reserve: Cost.%s is %d, must not exceed %d", f.name, f.n, int64(maxTokens))
		}
	}
	return nil
}

func (c Cost) valid() bool {
	const m = maxTokens
	return uint64(c.Prefill) <= m && uint64(c.Decode) <= m && uint64(c.KV) <= m
}

// Load is a sum over requests: their number and their tokens by kind. No figure is negative; the zero value is no
// load. It is a plain value: copies are independent and may be used by any goroutine.
type Load struct {
	// Requests is a number of requests, the others are tokens as in Cost.
	Requests int64 `json:"requests"`
	Prefill  int64 `json:"prefill"`
	Decode   int64 `json:"decode"`
	KV       int64 `json:"kv"`
}

func (l *Load) add(o *Load) {
	l.Requests += o.Requests
	l.Prefill += o.Prefill
	l.Decode += o.Decode
	l.KV += o.KV
}

// sub takes o off l. A figure that would become negative is a defect of this package.
func (l *Load) sub(o *Load) {
	l.Requests -= o.Requests
	l.Prefill -= o.Prefill
	l.Decode -= o.Decode
	l.KV -= o.KV
	if l.Requests|l.Prefill|l.Decode|l.KV < 0 {
		l.underflow()
	}
}

func (l *Load) underflow() {
	if invariantsOn {
		panic(fmt.Sprintf("reserve: underflow: %+v", *l))
	}
	l.Requests = max(l.Requests, 0)
	l.Prefill = max(l.Prefill, 0)
	l.Decode = max(l.Decode, 0)
	l.KV = max(l.KV, 0)
}

// Sums is one consistent reading of an account; the package documentation defines the three. It is a plain value:
// copies are independent and may be used by any goroutine.
type Sums struct {
	// Live is what all live leases hold now. It includes Unobserved.
	Live Load `json:"live"`
	// Unobserved is the part of Live that the newest snapshot cannot contain.
	Unobserved Load `json:"unobserved"`
	// Departed is what the newest snapshot can contain and is over. Zero before the first observation.
	Departed Load `json:"departed"`
}
