package httptransport

import "net/http"

// Prompt is what OpenAI.Tokenize is given. It is a plain value that may be read until the call returns.
type Prompt struct {
	// Path is that of the request's URL: chat completions go through a chat template, completions do not.
	Path string
	// Model is what the request asks for, perhaps empty.
	Model string
	// Body is the whole request, a JSON object. It must not be changed.
	Body []byte
}

func promptOf(r *http.Request, api *apiRequest, body []byte) Prompt {
	p := Prompt{Model: api.Model, Body: body}
	if r.URL != nil {
		p.Path = r.URL.Path
	}
	return p
}

// tokenize asks the tokenizer, if there is one.
func (o OpenAI) tokenize(p Prompt) ([]uint32, bool) {
	if o.Tokenize == nil {
		return nil, false
	}
	return o.Tokenize(p)
}
