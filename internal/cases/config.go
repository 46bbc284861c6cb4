package cases

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/isobar-go/isobar/router"
)

// configure makes a configuration of the keys of the command pool. Every field of router.Config is found by its name, so
// that a new one needs no change here.
func configure(c *command, cfg router.Config) (router.Config, error) {
	var zeros []string
	for i := range c.args {
		a := &c.args[i]
		if slices.ContainsFunc(c.args[:i], func(b arg) bool { return b.key == a.key }) {
			return cfg, fmt.Errorf("pool: key %q is given twice", a.key)
		}
		switch a.key {
		case "policy", "shadow":
			p, err := router.PolicyByName(a.value)
			if err != nil {
				return cfg, err
			}
			if a.key == "policy" {
				cfg.Policy = p
			} else {
				cfg.Shadow = p
			}
			continue
		}
		field := fieldByPath(reflect.ValueOf(&cfg).Elem(), a.key)
		if !field.IsValid() || !settable(field) {
			return cfg, fmt.Errorf("unknown key %q", a.key)
		}
		if err := setField(field, a); err != nil {
			return cfg, fmt.Errorf("key %q: %w", a.key, err)
		}
		if field.IsZero() {
			zeros = append(zeros, a.key)
		}
	}
	// A zero that was written means zero, where the zero value of the field means something else.
	for _, key := range zeros {
		effective := cfg.WithDefaults()
		if fieldByPath(reflect.ValueOf(effective), key).IsZero() {
			continue
		}
		switch field := fieldByPath(reflect.ValueOf(&cfg).Elem(), key); {
		case field.CanInt():
			field.SetInt(router.None)
		case field.CanFloat():
			field.SetFloat(router.None)
		}
	}
	return cfg, nil
}

// fieldByPath finds a field by its path in kebab case; the zero Value when there is none.
func fieldByPath(v reflect.Value, path string) reflect.Value {
	for name := range strings.SplitSeq(path, ".") {
		if v.Kind() != reflect.Struct {
			return reflect.Value{}
		}
		t, found := v.Type(), false
		for i := range t.NumField() {
			if f := t.Field(i); f.IsExported() && kebab(f.Name) == name {
				v, found = v.Field(i), true
				break
			}
		}
		if !found {
			return reflect.Value{}
		}
	}
	return v
}

// kebab turns MaxKV into max-kv and KVPressure into kv-pressure.
func kebab(name string) string {
	var b strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		if i > 0 && unicode.IsUpper(r) && (!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])) {
			b.WriteByte('-')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

func settable(field reflect.Value) bool {
	if _, ok := field.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return true
	}
	switch field.Interface().(type) {
	case router.GiveUp:
		return true
	}
	return field.CanInt() || field.CanUint() || field.CanFloat() || field.Kind() == reflect.Bool || field.Kind() == reflect.String
}

func setField(field reflect.Value, a *arg) error {
	if field.Kind() == reflect.Bool && a.bare {
		field.SetBool(true)
		return nil
	}
	if a.bare {
		return fmt.Errorf("needs a value")
	}
	if u, ok := field.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(a.value))
	}
	switch v := field.Addr().Interface().(type) {
	case *time.Duration:
		d, err := parseDuration(a.value)
		*v = d
		return err
	case *router.GiveUp:
		g, err := parseGiveUp(a.value)
		*v = g
		return err
	}
	switch bits := 0; {
	case field.Kind() == reflect.String:
		field.SetString(a.value)
	case field.Kind() == reflect.Bool:
		b, err := strconv.ParseBool(a.value)
		if err != nil {
			return fmt.Errorf("%q is not true or false", a.value)
		}
		field.SetBool(b)
	case field.CanInt():
		bits = field.Type().Bits()
		n, err := strconv.ParseInt(a.value, 10, bits)
		if err != nil {
			return fmt.Errorf("%q is not a whole number of %d bits", a.value, bits)
		}
		field.SetInt(n)
	case field.CanUint():
		bits = field.Type().Bits()
		n, err := strconv.ParseUint(a.value, 10, bits)
		if err != nil {
			return fmt.Errorf("%q is not a whole number of %d bits, 0 or more", a.value, bits)
		}
		field.SetUint(n)
	case field.CanFloat():
		f, err := parseFloat(a.value)
		if err != nil {
			return err
		}
		field.SetFloat(f)
	}
	return nil
}

// parseGiveUp reads a ratio, a duration or both joined by +. A part that is left out is zero.
func parseGiveUp(text string) (router.GiveUp, error) {
	g := router.GiveUp{Ratio: router.None, Extra: router.None}
	ratio, extra := false, false
	for part := range strings.SplitSeq(text, "+") {
		if f, err := strconv.ParseFloat(part, 64); err == nil && !ratio && !extra {
			ratio = true
			if f != 0 {
				g.Ratio = f
			}
			continue
		}
		d, err := parseDuration(part)
		if err != nil || extra {
			return router.GiveUp{}, fmt.Errorf("%q is not a ratio, a duration or RATIO+DURATION", text)
		}
		extra = true
		if d != 0 {
			g.Extra = d
		}
	}
	return g, nil
}
