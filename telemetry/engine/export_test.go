package engine

// LivesHeld returns how many counters l remembers.
func LivesHeld(l *Lives) int { return len(l.counters) }
