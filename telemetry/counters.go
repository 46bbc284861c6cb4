package telemetry

import (
	"maps"
	"time"
)

// Counters are totals since NewStore; Clear and restarts of the engine do not reset them. It is a copy that belongs to
// the caller.
type Counters struct {
	// Observations is the number of calls of Observe.
	Observations uint64 `json:"observations"`
	// Dropped is the number of snapshots of which nothing was taken, by reason. Reasons that never occurred are absent.
	Dropped map[Reason]uint64 `json:"dropped,omitempty"`
	// DroppedReadings is the number of single readings left out of any snapshot: older than what is held, from the
	// future, or zeros that cannot be believed.
	DroppedReadings uint64 `json:"dropped_readings"`
	// Defects is the number of snapshots that had an invalid value, by name. Names that never occurred are absent.
	Defects map[string]uint64 `json:"defects,omitempty"`
	// EpochChanges is the number of engine restarts seen.
	EpochChanges uint64 `json:"epoch_changes"`
	// ScrapeErrors is the number of calls of ScrapeError, LastScrapeError the text of the last error and
	// LastScrapeErrorAt the time given with it.
	ScrapeErrors      uint64    `json:"scrape_errors"`
	LastScrapeError   string    `json:"last_scrape_error,omitempty"`
	LastScrapeErrorAt time.Time `json:"last_scrape_error_at,omitzero"`
	// Trusts is the number of calls of Trust, LastTrustAt the time given to the last one.
	Trusts      uint64    `json:"trusts"`
	LastTrustAt time.Time `json:"last_trust_at,omitzero"`
}

// Counters returns a copy of the totals. It may be called concurrently with every other method.
func (s *Store) Counters() Counters {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.counters
	c.Dropped, c.Defects = maps.Clone(c.Dropped), maps.Clone(c.Defects)
	return c
}

func (s *Store) countLocked(res *Result, d defects) {
	c := &s.counters
	c.Observations++
	c.DroppedReadings += uint64(res.DroppedReadings)
	if res.EpochChanged {
		c.EpochChanges++
	}
	if res.Dropped != "" {
		if c.Dropped == nil {
			c.Dropped = make(map[Reason]uint64)
		}
		c.Dropped[res.Dropped]++
	}
	if d == 0 {
		return
	}
	res.Defects = d.names()
	if c.Defects == nil {
		c.Defects = make(map[string]uint64)
	}
	for _, name := range res.Defects {
		c.Defects[name]++
	}
}
