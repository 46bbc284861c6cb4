//go:build !race

package main

// scales are tried in this order.
var scales = []string{"6", "3", "1.5"}
