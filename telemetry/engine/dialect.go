package engine

import "strings"

// part is the meaning of a signal. The figures come first.
type part int

const (
	partRunning part = iota
	partWaiting
	partWaitingMore    // requests in queues of their own that come before the batch too: added to partWaiting
	partWaitingTokens  // tokens
	partKVShare        // 0 to 1
	partKVUsed         // tokens
	partKVUsedBlocks   // blocks
	partKVCapacity     // tokens
	partKVBlocks       // blocks
	partBlockSize      // tokens
	partGenerationRate // tokens per second
	partHitRate        // 0 to 1
	partMaxRunning
	partPrefixHits    // counter, tokens
	partPrefixQueries // counter, tokens
	numFigures        // parts above are single numbers of a rank; those below are read in their own ways

	partEvidence       // counter that rises once the engine works
	partCacheConfig    // labels that give the size of the KV cache
	partSleepState     // one-hot over a label
	partAdapterLoaded  // 1 for each adapter and memory level
	partAdapterRequest // lists of adapters in labels, the value is a time
	partAdapterSlots   // adapters that fit into device memory at once
	partProcessStart   // unix seconds
	numParts
)

// fold joins the figures that different models report on one rank.
func (p part) fold(a, b float64) float64 {
	switch p {
	case partKVShare, partHitRate, partBlockSize:
		return max(a, b)
	}
	return a + b
}

// signal says which families carry a part. The first one that is in a document is read and the others are not: they are
// the names of other versions, and a version that prints two of them prints the same figure twice.
type signal struct {
	part     part
	families []string // without the dialect's prefix, newest first
	label    string   // if set, only series with this value of the label count
	value    string
}

// dialect is what one kind of engine is known to report.
type dialect struct {
	kind Kind
	path string
	kv   KVMeaning
	// loads reads a JSON document, nil for Prometheus text. If it is set, the fields below are empty but for gives.
	loads func(body []byte, r *reading) error
	gives []Signal // what the JSON document can give

	prefixes    []string // of family names
	rankLabels  []string // all that are set make up the name of the data-parallel rank
	modelLabels []string // the first that is set is the model
	signals     []signal
	startTime   bool // prints the start time of its process

	// Labels of the families that say more by labels than by value.
	blockSize, numBlocks, sizeTokens string // partCacheConfig
	sleepState, awake                string // partSleepState: the label, and its value for an engine that serves
	adapter, level, ready, cached    string // partAdapterLoaded: two labels, and two values of level
	adapterRank                      string // partAdapterLoaded
	runningAdapters, waitingAdapters string // partAdapterRequest
	maxAdapters                      string // partAdapterRequest
}

// processStart is of the exporter library, not of the engine: alone it is no sign of one.
const processStart = "process_start_time_seconds"

// trim takes the dialect's prefix off a family name.
func (d *dialect) trim(family []byte) ([]byte, bool) {
	for _, prefix := range d.prefixes {
		if len(family) > len(prefix) && string(family[:len(prefix)]) == prefix {
			return family[len(prefix):], true
		}
	}
	return nil, false
}

// knows reports whether a family is one of the dialect's. A name of which the tail fits behind another prefix too is
// known only once: no prefix of a dialect is the beginning of another one.
func (d *dialect) knows(family []byte) bool {
	name, ok := d.trim(family)
	if !ok {
		return string(family) == processStart
	}
	return d.finds(name, numParts)
}

// finds reports whether a signal of a part below the given one reads a family, given without its prefix.
func (d *dialect) finds(name []byte, below part) bool {
	for i := range d.signals {
		if d.signals[i].part >= below {
			continue
		}
		for _, family := range d.signals[i].families {
			if string(name) == family {
				return true
			}
		}
	}
	return false
}

// first returns the value of the first label that is set.
func first(labels map[string]string, names []string) string {
	for _, name := range names {
		if v := labels[name]; v != "" {
			return v
		}
	}
	return ""
}

// joined returns the values of the labels that are set.
func joined(labels map[string]string, names []string) string {
	var all []string
	for _, name := range names {
		if v := labels[name]; v != "" {
			all = append(all, v)
		}
	}
	return strings.Join(all, "/")
}
