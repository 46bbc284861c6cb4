// Package kvevents reads the KV cache events that vLLM and SGLang publish, and makes of them the exact mode of package
// prefix: which blocks of which prompts each engine holds, as it says itself.
//
// # Parts
//
// [Decode] reads one message: a MessagePack batch of events. An [Applier], one for each endpoint, follows the batches of
// its ranks by their sequence numbers, keeps what each of the engine's block hashes stands for, and tells a [Sink], such as
// a router.Pool, what was stored and what is gone. A [Subscriber] brings the batches in from the engine's ZeroMQ sockets. A
// host with another transport feeds the Applier itself.
//
// # What is believed
//
// An engine's hashes are names and nothing more. The Applier hashes the token ids of the events as package prefix hashes
// a request's, in a scope that the host gives: [Config].Base for blocks without adapter and extra keys, [Config].Scope for
// others. A block without a scope, or one that leaves the scope of the blocks before it, gives no credit, nor does what
// follows it. The same holds for blocks of another size than the host hashes with, blocks behind one that is not known, and
// hashes that the engine uses for two blocks at once, until both are gone. [Stats].Refused counts them by [Reason]. Blocks in
// CPU memory or on disks count for nothing.
//
// A hash has to name a block with all that is before it. Where an engine hashes a block's own tokens alone, two blocks of one
// name are refused only where both are known: behind a name that stands for an unknown block too, such as after a loss, the
// wrong prompt can get the credit. [Stats].Refused shows many that are [Ambiguous] then; such an engine is better left in
// approximate mode.
//
// A block gives credit while any rank has a copy. So a prompt of which one rank has the first half and another rank the
// second counts as a whole, although no rank has it; engines evict from the tail, which makes that rare. Where a model has
// several kinds of attention, and the engine a cache for each, an event of one of them counts for all.
//
// # Losses
//
// No block that may be gone gives credit once a loss can be known of. A gap in the sequence numbers, a number that goes
// back (the engine was started again), a payload that cannot be decoded and a parent that cannot be unknown clear the
// endpoint's prefixes at once. What other sources hold is stored again, and what follows counts. Batches that are lost
// without another one behind them show only when the next one comes.
//
// An engine that keeps its last batches for a replay can heal a gap: the source is suspended, which takes its credit, and
// what is known stays in mind. The replay begins with the last batch that was applied. Only if that is the very batch
// it was, the engine is the same process and nothing is missing; then all is credited again.
//
// Who joins late, or has lost something, does not know the blocks from before. They give no credit until the engine stores
// them again, and blocks behind them do not either.
//
// # The host's obligations
//
//  1. Give one incarnation of an endpoint one Applier, and the ID under which the Sink knows it. While the Sink does not
//     know it yet, calls return its error, and it is brought into step with the first call that finds it.
//  2. Give a Base only if requests whose events show neither adapter nor extra keys are all of that scope. An engine that
//     does not publish extra keys shows no salt: where salts are used with it, leave Base empty.
//     The scopes are those of the host's requests, to the last of their prefix.Parts: a describer that puts the tenant into
//     them, as httptransport.OpenAI does without SharedPrefixes, makes requests that no block matches.
//  3. Set BlockTokens to the engine's block size, and hash requests with the same.
//  4. Give each data-parallel rank's socket a source of its own. Ranks have sequence numbers of their own.
//  5. Keep MaxBlocks above the engine's cache.
//  6. Run the Subscriber for as long as the endpoint is there. An endpoint in exact mode whose events end has no known
//     prefixes; to return to approximate mode it has to be removed and added. A peer that vanishes without a word shows only by the
//     keep-alive of TCP, within minutes with net.Dialer's default: a Dial with a shorter one notices sooner.
//  7. Let only the engine reach its sockets: they have neither authentication nor encryption, unless Dial adds them.
//
// # Concurrency
//
// The methods of [Applier] and [Subscriber] may be called from any goroutine. A Batch belongs to one goroutine at a time;
// all other types are plain values. An Applier starts no goroutine, does no I/O and reads no clock. A Subscriber works
// inside of Run.
package kvevents
