package embedded

// KVSubscriptions is the number of connections with a subscription that has come into effect.
func (e *Engine) KVSubscriptions() int {
	e.kv.log.mu.Lock()
	defer e.kv.log.mu.Unlock()
	n := 0
	for s := range e.kv.log.subscribers {
		if len(s.topics) > 0 {
			n++
		}
	}
	return n
}
