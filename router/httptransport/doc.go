// Package httptransport sends HTTP requests to the endpoints of a router. Transport is an http.RoundTripper: put it under
// an httputil.ReverseProxy and the proxy becomes a gateway; put it into an http.Client and the client spreads its calls.
//
// For every request it reserves an endpoint, rewrites scheme and host to that endpoint's Address, sends the request
// through Base, and returns a response whose Body ends the lease. Nothing is held back: bytes are looked at as they
// pass, and no goroutine is started.
//
// # How a lease ends
//
// Exactly once, in one of these ways:
//
//   - The body comes to its end: done, with the usage that the engine reported. What happens after the last event of a
//     stream ([DONE]), the whole Content-Length or a whole JSON document does not matter any more.
//   - The connection breaks in the middle of the body, or a stream carries an error event: the endpoint failed.
//   - The request's context ends (its deadline included), or the body is closed early: the caller cancelled, which says
//     nothing about the endpoint.
//   - No response headers come: the endpoint failed, unless the context ended or the caller's own body could not be read.
//   - The endpoint's Address is no base URL: cancelled. The request goes on to another endpoint as after a failure, but the
//     fault is in the settings, and opens no circuit.
//   - There is no body (HEAD, 204, 304, length 0): done at once.
//   - The connection that follows 101 Switching Protocols is closed, by whichever side: done; it breaks: failed.
//
// A status of 5xx is a failure of the endpoint. 429 is a refusal: the engine is alive and has too much to do, so it is avoided
// for a moment while there is another, and its circuit stays closed. Either ends the lease at once, since no work goes on
// behind such an answer. Any other status is a completed request.
//
// # Retries
//
// A request whose endpoint failed before its response headers, or answered 429, 502, 503 or 504, is sent once more to
// another endpoint, Retries times at most: never to one that failed it already, never after a byte of a body has been
// returned, and only where the request body can be sent again. A retried request may have been worked on in part: leave
// retries off (-1) where that matters.
//
// # Load reports
//
// Engines can say with every response how busy they are, in a header (engine.LoadHeader) or trailer of that name. With
// Loads, such a report goes to the pool as a snapshot observed when it arrived, so that the newest word counts, a poll's or
// a report's. With LoadFormat, the endpoints are asked for it, and the caller does not see it. An empty report is ignored, and
// an invalid one too, with a line at level Debug. A report counts for the incarnation that answered, as long as it is in the
// pool, and contains the request that it answers.
//
// # The host's obligations
//
//   - Close every response body, as with any RoundTripper. A body that is dropped keeps its lease open, which shows as
//     Stats.OldestLease.
//   - Give endpoints a base URL as their Address: ValidateAddress says beforehand what a request would find out.
//   - Give the transport a Log and the proxy LogErrors: the client is not told why an endpoint failed.
//   - Give Base the timeouts that suit the engines, above all ResponseHeaderTimeout: an engine that never answers holds
//     its request until the caller gives up.
//   - Bound the bodies of untrusted clients, here or in front.
//
// # Concurrency
//
// A Transport may be used by any number of goroutines as long as nobody changes its fields. A response body may be
// closed while another goroutine reads it.
package httptransport
