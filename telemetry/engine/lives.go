package engine

import (
	"maps"
	"strconv"
	"time"
)

// maxCounters is how many counters of one endpoint are compared from report to report.
const maxCounters = 1024

// Lives gives an epoch to the reports of an engine that does not print when its process started: another one each time
// one of its counters goes back. One Lives belongs to one endpoint, for as long as the store that its snapshots go to;
// the zero value is ready. One goroutine at a time may use it.
//
// It can miss a restart, never invent one: where all counters had passed their old values again before the next report, or
// were still zero, nothing shows. What it needs is only that an engine does not reset its counters by itself.
type Lives struct {
	counters map[string]float64 // the newest value of each
	newest   time.Time          // ObservedAt of the newest report
	life     int                // number of restarts seen, plus one; 0 = no counters seen
	printed  bool               // the engine does print a start time
}

// Apply fills in rep.Snapshot.Epoch if it is empty and the engine is known by its counters. Reports are to be applied in
// the order of their ObservedAt; one that comes late is left as it is. An engine that has once printed a start time is
// never given an epoch.
func (l *Lives) Apply(rep *Report) {
	at := rep.Snapshot.ObservedAt
	if at.Before(l.newest) {
		return
	}
	l.newest = at
	if rep.Snapshot.Epoch != "" {
		*l = Lives{newest: at, printed: true}
		return
	}
	if l.printed || l.life == 0 && len(rep.counters) == 0 {
		return
	}
	if l.life == 0 || l.wentBack(rep.counters) {
		l.life++
		l.counters = nil
	}
	// A rank that is missing from one report is compared again when it comes back, unless that would take too much.
	if l.counters == nil || len(l.counters) > maxCounters {
		l.counters = make(map[string]float64, len(rep.counters))
	}
	maps.Copy(l.counters, rep.counters)
	rep.Snapshot.Epoch = "life-" + strconv.Itoa(l.life)
}

func (l *Lives) wentBack(counters map[string]float64) bool {
	for name, v := range counters {
		if old, ok := l.counters[name]; ok && v < old {
			return true
		}
	}
	return false
}
