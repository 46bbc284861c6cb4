package kvevents

// Reason says why a stored block gives no credit. Any number of goroutines may use one.
type Reason uint8

// Reasons, in the order in which they are looked at.
const (
	// WrongBlockSize: block_size differs from Config.BlockTokens.
	WrongBlockSize Reason = iota
	// WrongTokens: the number of tokens is not that of the blocks times their size.
	WrongTokens
	// UnknownParent: the block before it is not known, such as after a loss or behind a block that was refused.
	UnknownParent
	// NoScope: the host gave no scope for its adapter or extra keys, or not that of the block before it.
	NoScope
	// Ambiguous: the engine calls two different blocks by the same hash, or the block before it is one of such.
	Ambiguous
	// Full: MaxBlocks are known already.
	Full

	numReasons = int(Full) + 1
)

// String names the reason.
func (r Reason) String() string {
	names := [numReasons]string{"wrong block size", "wrong tokens", "unknown parent", "no scope", "ambiguous", "full"}
	if int(r) >= len(names) {
		return "unknown"
	}
	return names[r]
}

// Refusals counts stored blocks that give no credit, by Reason. It is a plain value.
type Refusals [numReasons]int64

// Stats are counts since the Applier was made, and figures of one moment. A Stats is a plain value.
type Stats struct {
	// Batches that were applied, and Duplicates that were not as they had been before.
	Batches, Duplicates int64
	// Stored and Removed count blocks that the engine reported so, in its fast memory, as far as they could be used;
	// AllCleared counts its reports that all of a rank are gone.
	Stored, Removed, AllCleared int64
	// Gaps in sequence numbers, with Missed batches in them; Restarts, seen by numbers that went back.
	Gaps, Missed, Restarts int64
	// Invalid batches, which could not be decoded.
	Invalid int64
	// Orphans counts unknown parents in a rank of which all blocks should have been known.
	Orphans int64
	// Losses counts how often what was known of a source was given up, for one of the reasons above or by Lost; Clears
	// how often the endpoint's prefixes were cleared because something could be stale.
	Losses, Clears int64
	// Refused counts stored blocks that give no credit.
	Refused Refusals
	// OtherMedium counts blocks stored to or removed from CPU memory, disks and the like, which give no credit.
	OtherMedium int64
	// Unmatched counts removed blocks that were not known.
	Unmatched int64
	// Held is the number of different blocks that give credit now, Known that of all kept in mind.
	Held, Known int
	// Suspended is the number of sources between Suspend and Resume.
	Suspended int
}
