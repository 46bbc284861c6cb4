package watch

// Known is the number of lives of endpoints of which a Watcher knows something.
func (w *Watcher) Known() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.states)
}
