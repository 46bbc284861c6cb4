//go:build race

package main

// scales are tried in this order; the race detector takes most of the time.
var scales = []string{"2", "1"}
