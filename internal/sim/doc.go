// Package sim models one LLM engine replica: which requests run in a pass, how long the pass takes, which blocks of
// the KV cache are live, shared, cached or free.
//
// It is a pure, deterministic state machine with the scheduling rules of vLLM v1 (chunked prefill, decodes first,
// prefix caching, preemption by recomputation). It has no clock, no goroutine and no random source: the same calls in
// the same order give the same results.
//
// # A pass
//
// The engine works in passes. The host
//
//  1. hands over what has arrived with Submit (and Cancel for clients that have gone),
//  2. calls Begin, which chooses the requests of the pass and returns its duration in milliseconds,
//  3. lets that much of its own time go by, Submit and Cancel being allowed meanwhile,
//  4. calls End, which returns what happened at the end of the pass: admissions, tokens, ends, preemptions.
//
// Step does 2 and 4 at once, for hosts that only advance a number. If Begin reports no work, the host waits until the
// next Submit.
//
// # Many passes at once
//
// Quiet tells how many passes lie ahead in which nothing happens but one more token for everybody, and how long each takes;
// Skip does them in one step. The results are the same to the last block and cache event, without the events of the tokens.
//
// # Rules
//
//   - A pass has a token budget. Running requests come first, in order: a decode takes one token, an unfinished prefill
//     takes what is left of it, at most the budget.
//   - If a running request needs a block and none is free, the last running request is preempted: it loses its blocks,
//     keeps what it has generated and goes to the front of the waiting queue. This repeats, if need be up to the
//     request itself. A pass that preempts admits nobody.
//   - Then waiting requests are admitted first come, first served, while budget, places and blocks allow. Leading full
//     blocks that are cached are not computed again; the last token of a prompt always is.
//   - A preempted request computes its prompt and its generated tokens again, less what is still cached.
//   - Freed blocks keep their content. The least recently freed goes first, and of one request the tail goes before the
//     head. Cached and live blocks share one memory.
//
// # Duration
//
//	T = Base + PerToken*max(0, n-Knee) + PerContext*sum(context of decodes)
//	    + PerPair*sum over chunks t*(done + t/2) + PerSeq*B
//
// with n the new tokens, t the tokens of a prefill chunk, done the context before it (cached tokens included) and B the
// sequences of the pass. A first token comes at the end of the pass that completes the prompt.
//
// # Concurrency
//
// An Engine belongs to one goroutine at a time; nothing in it is locked. Profile, Request, Event and State are plain
// values.
package sim
