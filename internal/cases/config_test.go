package cases

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/router"
)

func configOf(t *testing.T, line string) (router.Config, error) {
	t.Helper()
	c, err := parseCommand("pool " + line)
	require.NoError(t, err)
	return configure(c, router.Config{})
}

func TestKebab(t *testing.T) {
	for name, want := range map[string]string{
		"MaxKV": "max-kv", "KVPressure": "kv-pressure", "StaleAfter": "stale-after", "FailClosed": "fail-closed", "Max": "max",
		"MaxQueueDelay": "max-queue-delay",
	} {
		require.Equal(t, want, kebab(name))
	}
}

// TestEveryFieldHasAKey sets every field of the configuration that a line of text can set, by its path.
func TestEveryFieldHasAKey(t *testing.T) {
	set := 0
	var walk func(v reflect.Value, path string)
	walk = func(v reflect.Value, path string) {
		for i := range v.NumField() {
			field := v.Type().Field(i)
			key := strings.TrimPrefix(path+"."+kebab(field.Name), ".")
			text := "1"
			switch {
			case field.Type == reflect.TypeFor[time.Duration]():
				text = "1s"
			case field.Type.Kind() == reflect.Bool:
				text = "true"
			case field.Type.Kind() == reflect.Struct:
				walk(v.Field(i), key)
				continue
			case field.Type.Kind() == reflect.Interface, field.Type.Kind() == reflect.Func:
				if key != "policy" && key != "shadow" {
					_, err := configOf(t, key+"=1")
					require.EqualError(t, err, `unknown key "`+key+`"`)
				}
				continue
			}
			cfg, err := configOf(t, key+"="+text)
			require.NoError(t, err, key)
			require.False(t, fieldByPath(reflect.ValueOf(cfg), key).IsZero(), key)
			set++
		}
	}
	walk(reflect.ValueOf(router.Config{}), "")
	require.Greater(t, set, 30)
}

func TestZeroMeansZero(t *testing.T) {
	cfg, err := configOf(t, "tie-window=0ms bounds.max-waiting=0 bounds.max-kv=0 caps.waiting=0 seed=0 receipts.sample=0 bounds.give-up=0")
	require.NoError(t, err)
	require.Equal(t, time.Duration(router.None), cfg.TieWindow)
	require.Zero(t, cfg.Caps.Waiting, "a cap of zero is off, a negative one an error")
	effective := cfg.WithDefaults()
	require.Negative(t, effective.TieWindow)
	require.Negative(t, effective.Bounds.MaxWaiting)
	require.Negative(t, effective.Bounds.MaxKV)
	require.Equal(t, router.GiveUp{Ratio: router.None, Extra: router.None}, effective.Bounds.GiveUp)
	require.Zero(t, effective.Receipts.Sample)
	require.Equal(t, 4, effective.UnobservedMax)
}

func TestParseGiveUp(t *testing.T) {
	const none = router.None
	for text, want := range map[string]router.GiveUp{
		"0.5+500ms": {Ratio: 0.5, Extra: 500 * time.Millisecond}, "0": {Ratio: none, Extra: none}, "0ms": {Ratio: none, Extra: none},
		"0.2": {Ratio: 0.2, Extra: none}, "300ms": {Ratio: none, Extra: 300 * time.Millisecond}, "0+1s": {Ratio: none, Extra: time.Second},
	} {
		got, err := parseGiveUp(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"", "+", "x", "1s+0.5", "0.5+0.5", "1s+1s", "0.5+1s+1s"} {
		_, err := parseGiveUp(text)
		require.Error(t, err, text)
	}
}

func TestBadConfiguration(t *testing.T) {
	for line, want := range map[string]string{
		"bounds=1": `unknown key "bounds"`, "bounds.=1": `unknown key "bounds."`, "caps.tenant.x=1": `unknown key "caps.tenant.x"`,
		"seed": `key "seed": needs a value`, "seed=-1": `key "seed": "-1" is not a whole number of 64 bits, 0 or more`,
		"fail-closed=maybe": `key "fail-closed": "maybe" is not true or false`, "bounds.max-kv=x": `key "bounds.max-kv": "x" is not a number`,
		"seed=1 seed=2": `pool: key "seed" is given twice`, "shadow=x": "router: policy \"x\" is not one of " + fmt.Sprint(router.PolicyNames()),
	} {
		_, err := configOf(t, line)
		require.EqualError(t, err, want, line)
	}
}
