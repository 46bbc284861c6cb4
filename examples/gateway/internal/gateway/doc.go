// Package gateway is an HTTP server that puts a router's pool before engines that speak the OpenAI API.
//
// It answers
//
//	POST /v1/chat/completions, /v1/completions   by the engine that the pool chooses
//	GET  /v1/models                              the union of what the engines serve
//	GET  /healthz                                200 while an engine can be chosen, else 503
//	GET  /debug/isobar                           the pool's state and receipts, to this machine only
//
// and everything that is wrong in OpenAI's error shape. A request whose engine fails before the first byte goes to
// another one; a stream whose engine dies ends with an error event.
//
// What a client can cost is bounded: the size of headers and body, the time it may take to send them, and the time it
// may leave a part of its answer untaken. Keys, prompts and tenants are not logged; every failed attempt is, with its cause.
//
// # The debug page
//
// It shows the receipts of open requests, oldest first, and of ended ones, newest first: n of each (?n=COUNT, default 20), or
// all those of one request (?id=REQUEST, the X-Request-Id of its answer), then with the candidates' table as text. For each
// engine it says how old its newest poll is, how many have failed, and why the last one did, and how its KV events go: whether
// there is a subscription, the number of the newest batch, gaps, and blocks that give no credit, by reason.
//
// It is answered to this machine only. A proxy on this machine that adds no header of its own and speaks HTTP/1.1 cannot be
// told from a person here: deny the path there.
//
// A Gateway may be used by any number of goroutines.
package gateway
