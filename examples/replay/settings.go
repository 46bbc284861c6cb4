package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/isobar-go/isobar/router"
)

// setWeights puts weights such as "interference=0.2" into a configuration. 0 turns a term off.
func setWeights(cfg *router.Config, s string) error {
	w := &cfg.Weights
	return assign(s, map[string]func(string) error{
		"interference": number(&w.Interference), "displacement": number(&w.Displacement),
		"wait": number(&w.Wait), "kv-pressure": number(&w.KVPressure),
		"uncertainty": number(&w.Uncertainty),
	})
}

// setBounds does the same with bounds on affinity.
func setBounds(cfg *router.Config, s string) error {
	b := &cfg.Bounds
	if err := assign(s, map[string]func(string) error{
		"waiting": count(&b.MaxWaiting), "kv": number(&b.MaxKV), "queue-delay": duration(&b.MaxQueueDelay), "lead": duration(&b.MaxLead),
		"give-up-ratio": number(&b.GiveUp.Ratio), "give-up-extra": duration(&b.GiveUp.Extra),
	}); err != nil {
		return err
	}
	// Where one part is given, the other stays what it is by default.
	d := router.Config{}.WithDefaults().Bounds.GiveUp
	if b.GiveUp != (router.GiveUp{}) {
		if b.GiveUp.Ratio == 0 {
			b.GiveUp.Ratio = d.Ratio
		}
		if b.GiveUp.Extra == 0 {
			b.GiveUp.Extra = d.Extra
		}
	}
	return nil
}

// assign reads name=value by commas, each name once.
func assign(s string, fields map[string]func(string) error) error {
	seen := map[string]bool{}
	for part := range strings.SplitSeq(s, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		set := fields[name]
		switch {
		case !ok:
			return fmt.Errorf("%q is not name=value", part)
		case set == nil:
			return fmt.Errorf("%q is not one of %s", name, strings.Join(slices.Sorted(maps.Keys(fields)), ", "))
		case seen[name]:
			return fmt.Errorf("%q is there twice", name)
		}
		seen[name] = true
		if err := set(value); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// number, count and duration read a value of at least 0, for which the router has its None.
func number(to *float64) func(string) error {
	return func(s string) error {
		v, err := strconv.ParseFloat(s, 64)
		if err != nil || !(v >= 0 && v <= 1e9) {
			return fmt.Errorf("%q is not a number in 0 to 1e9", s)
		}
		*to = v
		if v == 0 {
			*to = router.None
		}
		return nil
	}
}

func count(to *int) func(string) error {
	return func(s string) error {
		v, err := strconv.Atoi(s)
		if err != nil || v < 0 {
			return fmt.Errorf("%q is not a whole number of at least 0", s)
		}
		*to = v
		if v == 0 {
			*to = router.None
		}
		return nil
	}
}

func duration(to *time.Duration) func(string) error {
	return func(s string) error {
		v, err := time.ParseDuration(s)
		if err != nil || v < 0 {
			return fmt.Errorf("%q is not a time of at least 0, such as 500ms", s)
		}
		*to = v
		if v == 0 {
			*to = router.None
		}
		return nil
	}
}
