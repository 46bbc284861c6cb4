package world

import "time"

// begin starts an incident.
func (w *world) begin(i int) {
	x := w.cfg.Incidents[i]
	n := w.nodes[x.Engine]
	n.settle()
	until := w.now + int64(x.For)
	switch x.Kind {
	case Drain:
		n.draining = true
		w.change(n, Draining)
	case Restart, Die:
		if n.up {
			n.crash()
		}
		if x.Kind == Die {
			w.push(w.now+int64(x.Notice), evNotice, uint64(i), 0)
		}
		if x.Kind == Die && x.For == 0 {
			return
		}
	case Freeze:
		if !n.up {
			return
		}
		n.keepReport()
		n.frozen = true
		if n.busy {
			n.schedule(n.passEnd + int64(x.For))
			n.passStall += int64(x.For)
		}
	case Stuck:
		n.keepReport()
	case Silent:
		n.silent = true
	case Slow:
		n.slow = x.Factor
	}
	if x.For > 0 || x.Kind == Restart {
		w.push(until, evOver, uint64(i), 0)
	}
}

// keepReport makes the reports of a node stay as they are.
func (n *node) keepReport() {
	if n.up && !n.stuck {
		n.stale = n.observe()
		n.stuck = true
	}
}

// over ends an incident.
func (w *world) over(i int) {
	x := w.cfg.Incidents[i]
	n := w.nodes[x.Engine]
	n.settle()
	switch x.Kind {
	case Drain:
		n.draining = false
		w.change(n, Ready)
	case Restart, Die:
		if n.up {
			return
		}
		if err := n.boot(); err != nil {
			w.fail("engine %d: %w", x.Engine, err)
			return
		}
		if w.cfg.Cache.Exact {
			w.tellCleared(n)
		}
		if n.gone {
			n.gone = false
			w.change(n, Joined)
			if n.draining {
				w.change(n, Draining)
			}
		}
	case Freeze:
		n.frozen, n.stuck = false, false
		n.work()
	case Stuck:
		n.stuck = false
	case Silent:
		n.silent = false
	case Slow:
		n.slow = 1
	}
}

// notice takes a dead engine out of the gateways, unless it is back already.
func (w *world) notice(i int) {
	if n := w.nodes[w.cfg.Incidents[i].Engine]; !n.up && !n.gone {
		w.change(n, Gone)
		n.gone = true
	}
}

// change tells every gateway, unless operators have taken the engine out.
func (w *world) change(n *node, c Change) {
	if n.gone {
		return
	}
	for _, g := range w.gates {
		g.chooser.Change(n.number, c)
	}
}

// Sample is the true load of an engine at one moment. A Sample is a plain value.
type Sample struct {
	// At is the moment, since the start.
	At time.Duration
	// Running and Waiting are numbers of requests; those that wait for an adapter are waiting.
	Running, Waiting int
	// KV is the share of its memory in use, 0 to 1.
	KV float64
	// Up is false while it is down.
	Up bool
}

// sample notes the load of every engine and checks what must hold at any time.
func (w *world) sample() {
	for _, n := range w.nodes {
		s := Sample{At: time.Duration(w.now), Up: n.up}
		if n.up {
			n.settle()
			st := n.engine.State()
			s.Running, s.Waiting, s.KV = st.Running, st.Waiting+n.waits(), st.KVUsed
			n.check(st.Running, st.Waiting, st.UsedBlocks)
		}
		n.series = append(n.series, s)
	}
	w.push(w.now+int64(w.cfg.SampleEvery), evSample, 0, 0)
}

// check is the conservation of work and of blocks.
func (n *node) check(running, waiting, used int) {
	w := n.world
	switch {
	case running+waiting > 0 && !n.busy && !n.frozen:
		w.fail("engine %d idles with %d requests running, %d waiting", n.number, running, waiting)
	case running == 0 && used != 0:
		w.fail("engine %d has %d blocks in use by nobody", n.number, used)
	case running > n.cfg.Profile.MaxSeqs:
		w.fail("engine %d runs %d requests, more than %d", n.number, running, n.cfg.Profile.MaxSeqs)
	}
}
