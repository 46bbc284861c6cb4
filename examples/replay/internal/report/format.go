package report

import (
	"math"
	"strconv"
	"strings"

	"github.com/isobar-go/isobar/internal/experiment"
)

// number shows a figure with about three digits.
func number(u experiment.Unit, v float64) string {
	switch u {
	case experiment.Share:
		return strconv.FormatFloat(100*v, 'f', 1, 64) + " %"
	case experiment.Ratio:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	switch a := math.Abs(v); {
	case u == experiment.Count && v == math.Trunc(v), a >= 100:
		return grouped(v)
	case a >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// grouped is a whole number with commas between thousands.
func grouped(v float64) string {
	s := strconv.FormatFloat(math.Round(math.Abs(v)), 'f', 0, 64)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	if math.Round(v) < 0 {
		return "-" + s
	}
	return s
}

// stat shows a mean and, where it is not zero, the half width of its interval.
func stat(u experiment.Unit, s experiment.Stat) string {
	if s.N == 0 {
		return ""
	}
	if s.Half == 0 {
		return number(u, s.Mean)
	}
	return number(u, s.Mean) + " ± " + number(u, s.Half)
}

// shown is a figure of a row; a dash where nothing was predicted that it could be about.
func shown(x *experiment.Row, m *experiment.Metric) string {
	if strings.HasPrefix(m.Key, "start_") && x.Stat("start_error_mean").Mean == 0 {
		return "–"
	}
	return stat(m.Unit, x.Stat(m.Key))
}

// percent is a share with its sign.
func percent(v float64) string {
	s := strconv.FormatFloat(100*v, 'f', 1, 64) + " %"
	if v > 0 {
		return "+" + s
	}
	return s
}
