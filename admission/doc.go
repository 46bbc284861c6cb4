// Package admission holds the limits under which requests are admitted.
//
// [Caps] are checked by the router inside the step that selects an endpoint and reserves its cost, so that admission
// never refuses what selection could have placed elsewhere, and never admits past a cap under any interleaving.
//
// The package is pure: it keeps no clock and starts no goroutine.
package admission
