// Package embedded runs a model of an LLM engine as a real HTTP server that speaks the OpenAI API, in scaled real time.
// Examples and tests route to it as they would to vLLM, without a GPU.
//
// Start returns a server on loopback. It answers
//
//	POST /v1/chat/completions   streamed (server-sent events, one token a chunk) or as one JSON document
//	POST /v1/completions        the same for a bare prompt: a string or token ids
//	GET  /v1/models, /health
//	GET  /metrics               names and labels of vLLM v1, or of the engine that Config.Dialect names
//
// The dialect "trtllm" has its text at /prometheus/metrics, and at /metrics a JSON list of what happened since it was last
// read. A request that asks for it (Endpoint-Load-Metrics-Format: TEXT or JSON) gets a load report in a header of its
// answer, in vLLM's names, with the figures that the dialect's metrics have too.
//
// With Config.KVEvents it publishes which blocks are in its prefix cache, as vLLM does: MessagePack batches with sequence
// numbers over a ZeroMQ PUB socket, under the topic "kv-events", and from a ROUTER socket once more the last 10,000 of them.
// Tokenize gives a prompt's token ids as these events have them.
//
// # What is modelled
//
// Scheduling, durations, prefix cache and preemption come from the engine model; the answer's words mean nothing. A
// token is up to four bytes of text; a message is a token for its role, its text and a token for its end, so that the
// next turn of a conversation continues the blocks of the one before, the answer included. An answer ends by itself
// after Config.OutputTokens, or earlier at max_tokens (max_completion_tokens); with ignore_eos, a vLLM extension, it
// has exactly max_tokens. cache_salt, another one, keeps prompts apart. Sampling parameters and stop strings are
// ignored; n above 1 and parts other than text are refused.
//
// # The host's obligations
//
//   - End every engine with Shutdown (streams may finish) or Kill (they break off). Both wait until no goroutine of the
//     engine is left.
//   - Drain the response bodies or cancel the requests: a client that stops reading for half a minute is dropped.
//
// # Concurrency
//
// All methods of an Engine may be called from any goroutine at any time.
package embedded
