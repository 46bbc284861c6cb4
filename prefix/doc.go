// Package prefix remembers which holder, that is which engine replica, has which prompt prefix in its KV cache.
//
// # Words
//
// A [Scope] is the trust boundary of a prefix: model, revision, tokenizer, tenant, salt, adapter, cache format.
// Prompts of different scopes share nothing. A [Sequence] is a prompt in a scope, cut into blocks of the engine's
// size and hashed in a chain, so that the hash of a block stands for everything up to it. An [Index] holds
// sequences for holders and answers, in one walk, how many leading tokens of a sequence every holder has.
//
// # Approximate and exact
//
// A holder starts in approximate mode: [Index.Record] notes what was routed to it, and the engine is assumed
// to keep it until its capacity is used up. The first [Index.Apply] puts it in exact mode: what had been assumed is
// dropped, and from then on the engine's own events say what is held. To return to approximate mode, Remove
// the holder and Add another.
//
// # What a match means
//
// A match is a number of leading tokens, in whole blocks, never longer than what was recorded or stored for that
// holder in that scope, barring a collision of 64-bit hashes (XXH64) within the scope. XXH64 is fast and not
// collision resistant: who may send prompts in a scope could construct one and spoil matches in that scope, for
// nobody else. Index entries carry the scope's full digest, so no collision reaches across scopes.
//
// # Bounds
//
// Both bounds are kept at insertion. Capacity bounds each holder in tokens; Config.MaxBytes bounds the index in
// bytes of its own memory, over all holders. What has gone longest without use goes first, and of it the tail
// first: what is left is always a usable head, a shared head outlives its tails, and the newest prompt stays whole
// where it fits. Memory that a removed holding leaves is given back to the garbage collector at once.
//
// # The host's obligations
//
//  1. Give one incarnation of an endpoint one [Holder]: Add it when the incarnation appears, Remove it when it is
//     gone. A restarted engine is another incarnation.
//  2. Hash with the engine's block size, and take every part that decides whether the engine may share blocks into
//     the Scope. A part left out is a leak between those it would have kept apart.
//  3. Apply the events of one holder in the engine's order, from one goroutine at a time. After a gap, Clear.
//  4. Read slots from the handles, and do not use what Match returned for a holder added after it was called.
//
// # Concurrency
//
// Scope, Sequence, Parts, Event and Holder are values that any number of goroutines may share. All methods of an
// Index may be called from any number of goroutines. Match takes no lock: it never waits, not even for Remove or
// Clear of a large holder. The other methods take turns on one lock; those whose work grows with what a holder holds
// (Clear, ClearAll, Remove, SetCapacity, the first Apply, and any that must make much room) let others in between.
//
// The package starts no goroutine, does no I/O and reads no clock.
package prefix
