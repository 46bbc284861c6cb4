//go:build !invariants && !race

package reserve

// invariantsOn makes an underflow panic instead of being clamped.
const invariantsOn = false
