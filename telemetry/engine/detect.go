package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// Detect tells the kind of a document from its content: the names of its metric families or the fields of its JSON. A
// family that is read as a figure counts for more than one that merely begins like those of the kind. The error wraps
// ErrEmpty, ErrMarkup, ErrNoEntries or, where nothing or more than one kind fits, ErrUndetected.
func Detect(body []byte) (Kind, error) {
	text := bytes.TrimSpace(body)
	switch {
	case len(text) == 0:
		return "", fmt.Errorf("engine: %w", ErrEmpty)
	case text[0] == '<':
		return "", fmt.Errorf("engine: %w: %w", ErrUndetected, ErrMarkup)
	case string(text) == "[]", string(text) == "{}":
		return "", fmt.Errorf("engine: %w: %w in the JSON", ErrUndetected, ErrNoEntries)
	case text[0] == '[', text[0] == '{':
		if kind, ok := detectJSON(text); ok {
			return kind, nil
		}
	}
	return detectText(body)
}

// detectText counts what each kind would read.
func detectText(body []byte) (Kind, error) {
	var exact, alike [len(dialects)]bool
	for line := range bytes.Lines(body) {
		line = bytes.TrimSpace(line)
		family := line[:nameLen(line)]
		if declared, ok := typeLine(line); ok {
			family = declared
		} else if !isSample(line[len(family):]) {
			continue
		}
		for i := range dialects {
			if name, ok := dialects[i].trim(family); ok {
				alike[i] = true
				exact[i] = exact[i] || dialects[i].finds(name, numFigures)
			}
		}
	}
	for _, found := range [...][len(dialects)]bool{exact, alike} {
		var kinds []string
		for i := range dialects {
			if found[i] {
				kinds = append(kinds, string(dialects[i].kind))
			}
		}
		switch {
		case len(kinds) == 1:
			return Kind(kinds[0]), nil
		case len(kinds) > 1:
			return "", fmt.Errorf("engine: %w: it may be %s", ErrUndetected, strings.Join(kinds, " or "))
		}
	}
	return "", fmt.Errorf("engine: %w", ErrUndetected)
}

// detectJSON looks, in the document or in the first entry of a list, for the fields that only one of the reports has.
func detectJSON(text []byte) (Kind, bool) {
	if !json.Valid(text) {
		return "", false
	}
	in := json.NewDecoder(bytes.NewReader(text))
	if text[0] == '[' {
		_, _ = in.Token()
	}
	var has struct {
		Loads    json.RawMessage `json:"loads"`
		Running  json.RawMessage `json:"num_running_reqs"`
		Waiting  json.RawMessage `json:"num_waiting_reqs"`
		Active   json.RawMessage `json:"numActiveRequests"`
		KV       json.RawMessage `json:"kvCacheStats"`
		Inflight json.RawMessage `json:"inflightBatchingStats"`
	}
	if in.Decode(&has) != nil {
		return "", false
	}
	switch {
	case len(has.Loads)+len(has.Running)+len(has.Waiting) > 0:
		return SGLangLoads, true
	case len(has.Active)+len(has.KV)+len(has.Inflight) > 0:
		return TRTLLMIterations, true
	}
	return "", false
}
