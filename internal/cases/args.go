package cases

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// command is a parsed line: its first word and its arguments, of which every one must be used exactly once.
type command struct {
	name string
	args []arg
	err  error // the first fault found while reading arguments
}

// arg is key, key=value or key=(value, value); the last is read as key=value,value.
type arg struct {
	key, value string
	bare       bool // without =
	used       bool
}

// parseCommand splits a line into words. The line is not empty.
func parseCommand(line string) (*command, error) {
	const blank = " \t"
	rest := strings.Trim(line, blank)
	name, rest, _ := cutAny(rest, blank)
	c := &command{name: name}
	for rest = strings.TrimLeft(rest, blank); rest != ""; rest = strings.TrimLeft(rest, blank) {
		column := len(line) - len(rest) + 1
		at := strings.IndexAny(rest, blank+"=")
		if at < 0 || rest[at] != '=' {
			word, tail, _ := cutAny(rest, blank)
			c.args, rest = append(c.args, arg{key: word, bare: true}), tail
			continue
		}
		if at == 0 {
			return nil, fmt.Errorf("a value without a key at column %d", column)
		}
		a := arg{key: rest[:at]}
		rest = rest[at+1:]
		if strings.HasPrefix(rest, "(") {
			end := strings.IndexByte(rest, ')')
			if end < 0 {
				return nil, fmt.Errorf("%q at column %d has no closing parenthesis", a.key, column)
			}
			parts := strings.Split(rest[1:end], ",")
			for i := range parts {
				parts[i] = strings.Trim(parts[i], blank)
			}
			a.value, rest = strings.Join(parts, ","), rest[end+1:]
		} else {
			a.value, rest, _ = cutAny(rest, blank)
		}
		c.args = append(c.args, a)
	}
	return c, nil
}

func cutAny(s, chars string) (before, after string, found bool) {
	if i := strings.IndexAny(s, chars); i >= 0 {
		return s[:i], s[i:], true
	}
	return s, "", false
}

func (c *command) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

// word takes the next argument without a value.
func (c *command) word(what string) string {
	for i := range c.args {
		if a := &c.args[i]; a.bare && !a.used {
			a.used = true
			return a.key
		}
	}
	c.fail("%s: no %s given", c.name, what)
	return ""
}

// flag takes the argument of that name without a value.
func (c *command) flag(key string) bool {
	for i := range c.args {
		if a := &c.args[i]; a.bare && !a.used && a.key == key {
			a.used = true
			return true
		}
	}
	return false
}

// take takes the argument of that key.
func (c *command) take(key string) (string, bool) {
	for i := range c.args {
		if a := &c.args[i]; !a.used && a.key == key {
			a.used = true
			if a.bare {
				c.fail("key %q needs a value", key)
			}
			return a.value, true
		}
	}
	return "", false
}

func (c *command) text(key string) string {
	v, _ := c.take(key)
	return v
}

// splitList reads a comma list, which is empty without any text.
func splitList(v string) []string {
	if v == "" {
		return nil
	}
	return strings.Split(v, ",")
}

// count takes a whole number in [least, most].
func (c *command) count(key string, least, most, absent int64) (int64, bool) {
	v, ok := c.take(key)
	if !ok {
		return absent, false
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil {
		c.fail("key %q: %q is not a whole number", key, v)
	} else if n < least || n > most {
		c.fail("key %q: %d is not in [%d, %d]", key, n, least, most)
	}
	return n, true
}

// number takes any float64, NaN and infinities included.
func (c *command) number(key string) (float64, bool) {
	v, ok := c.take(key)
	if !ok {
		return 0, false
	}
	f, err := parseFloat(v)
	if err != nil {
		c.fail("key %q: %w", key, err)
	}
	return f, true
}

func parseFloat(v string) (float64, error) {
	f, err := strconv.ParseFloat(v, 64)
	if err != nil && !(errors.Is(err, strconv.ErrRange) && math.IsInf(f, 0)) {
		return 0, fmt.Errorf("%q is not a number", v)
	}
	return f, nil
}

// duration takes a duration that a virtual clock can be moved by.
func (c *command) duration(key string) (time.Duration, bool) {
	v, ok := c.take(key)
	if !ok {
		return 0, false
	}
	d, err := parseDuration(v)
	if err != nil {
		c.fail("key %q: %w", key, err)
	}
	return d, true
}

// maxSpan bounds the virtual clock and every distance from it, so that no difference of two times leaves the range of a
// time.Duration.
const maxSpan = 50 * 365 * 24 * time.Hour

func parseDuration(v string) (time.Duration, error) {
	d, err := time.ParseDuration(v)
	if err != nil {
		return 0, fmt.Errorf("%q is not a duration", v)
	}
	if d.Abs() > maxSpan {
		return 0, fmt.Errorf("duration %q is above 50 years", v)
	}
	return d, nil
}

// end says what is wrong with the command: the first fault, or the first argument that nobody has taken.
func (c *command) end() error {
	if c.err != nil {
		return c.err
	}
	for i := range c.args {
		a := &c.args[i]
		if a.used {
			continue
		}
		for j := range c.args[:i] {
			if c.args[j].key == a.key {
				return fmt.Errorf("%s: key %q is given twice", c.name, a.key)
			}
		}
		return fmt.Errorf("unknown key %q", a.key)
	}
	return nil
}

// checkName keeps the names of endpoints and leases to what can be told from everything else in a line.
func checkName(what, name string) error {
	for i, r := range name {
		if i == 0 && !unicode.IsLetter(r) && !unicode.IsDigit(r) || !unicode.IsGraphic(r) || unicode.IsSpace(r) || r == ',' {
			return fmt.Errorf("%s %q must begin with a letter or digit and have no comma", what, name)
		}
	}
	if len(name) == 0 || len(name) > 128 {
		return fmt.Errorf("%s %q must have 1 to 128 bytes", what, name)
	}
	return nil
}
