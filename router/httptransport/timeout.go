package httptransport

import (
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// maxTimeout is the longest that a client can say it waits, seconds: a day.
const maxTimeout = 86_400

// deadline reads the header that says how many seconds the client waits, from now; the zero time = it does not say.
func (o OpenAI) deadline(h http.Header) (time.Time, error) {
	if o.TimeoutHeader == "" {
		return time.Time{}, nil
	}
	text := h.Get(o.TimeoutHeader)
	if text == "" {
		return time.Time{}, nil
	}
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil || !(seconds > 0 && seconds <= maxTimeout) {
		return time.Time{}, &RequestError{
			Param:   o.TimeoutHeader,
			Message: fmt.Sprintf("header %s = %.40q is not a number of seconds above 0 and at most %d", o.TimeoutHeader, text, maxTimeout),
			Err:     err,
		}
	}
	now := o.Now
	if now == nil {
		now = time.Now
	}
	return now().Add(time.Duration(seconds * float64(time.Second))), nil
}
