package scrape

// Known is the number of lives of endpoints of which a Poller knows something.
func (p *Poller) Known() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.states)
}
