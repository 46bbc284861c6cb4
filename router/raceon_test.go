//go:build race

package router_test

// raceDetector says that the race detector is on, under which a sync.Pool forgets at random and allocations cannot be counted.
const raceDetector = true
