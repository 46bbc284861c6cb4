// Package gateway is an HTTP server that puts a router's pool before engines that speak the OpenAI API.
//
// It answers
//
//	POST /v1/chat/completions, /v1/completions   by the engine that the pool chooses
//	GET  /v1/models                              the union of what the engines serve
//	GET  /healthz                                200 while an engine can be chosen or waited for, else 503, or 429 when all are full
//	GET  /debug/isobar                           the pool's state and receipts, to this machine only
//
// and everything that is wrong in OpenAI's error shape. A request whose engine fails before the first byte goes to
// another one; a stream whose engine dies ends with an error event.
//
// What a client can cost is bounded: the size of headers and body, the time it may take to send them, and the time it
// may leave a part of its answer untaken. Keys, prompts and tenants are not logged; every failed attempt is, with its cause.
//
// # Overload
//
// Whom the pool does not admit gets 429 (its limits, the queue), 503 (nobody can serve it, telemetry incomplete) or 504 (a
// deadline that cannot be met), with Retry-After where the pool knows it, the same whether the request has waited or not. A
// client says with X-Isobar-Timeout how many seconds it waits. What was admitted counts until the end of its stream. A client that
// leaves while it waits leaves the queue at once, and is counted as 499. When the gateway stops, who waits is served for half
// of the grace, and then refused with 503.
//
// # The debug page
//
// It shows the receipts of open requests, oldest first, and of ended ones, newest first: n of each (?n=COUNT, default 20), or
// all those of one request (?id=REQUEST, the X-Request-Id of its answer), then with the candidates' table as text. For each
// engine it says how old its newest poll is, how many have failed, and why the last one did, and how its KV events go: whether
// there is a subscription, the number of the newest batch, gaps, and blocks that give no credit, by reason.
//
// Of admission it shows the settings, and what was answered in place of an engine, by status; in the pool's stats, the queue:
// who waits by class, for how long, and how others have left; and with each engine its adaptive limit and the reasons of
// its last changes. Tenants appear as hashes only.
//
// It is answered to this machine only. A proxy on this machine that adds no header of its own and speaks HTTP/1.1 cannot be
// told from a person here: deny the path there.
//
// A Gateway may be used by any number of goroutines.
package gateway
