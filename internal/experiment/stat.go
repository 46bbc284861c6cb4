package experiment

import "math"

// Stat is a figure over several seeds. A Stat is a plain value.
type Stat struct {
	// N is the number of values; all is 0 where N is.
	N int
	// Mean of them.
	Mean float64
	// Half is the half width of the 95 % confidence interval of the mean, by Student's t distribution: 0 for one value.
	Half float64
}

// NewStat describes values.
func NewStat(values []float64) Stat {
	n := len(values)
	if n == 0 {
		return Stat{}
	}
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	s := Stat{N: n, Mean: sum / float64(n)}
	if n == 1 {
		return s
	}
	squares := 0.0
	for _, v := range values {
		squares += (v - s.Mean) * (v - s.Mean)
	}
	s.Half = quantile95(n-1) * math.Sqrt(squares/float64(n-1)/float64(n))
	return s
}

// student has the 97.5 % quantile of Student's t distribution with 1 to 30 degrees of freedom (Fisher and Yates, Statistical
// Tables, table III).
var student = [...]float64{
	12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
	2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
	2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
}

// quantile95 is the 97.5 % quantile for df degrees of freedom, at least 1. Beyond the table it is the first terms of the expansion by
// Cornish and Fisher around that of the normal distribution, right to four digits there.
func quantile95(df int) float64 {
	if df <= len(student) {
		return student[df-1]
	}
	const z = 1.959964
	n := float64(df)
	return z + (z*z*z+z)/(4*n) + (5*z*z*z*z*z+16*z*z*z+3*z)/(96*n*n)
}
