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
				exact[i] = exact[i] || dialects[i].figure(name)
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

// figure reports whether a family, given without its prefix, carries a figure.
func (d *dialect) figure(name []byte) bool {
	for i := range d.signals {
		if d.signals[i].part >= numFigures {
			continue
		}
		for _, family := range d.signals[i].families {
			if string(name) == family {
				return true
			}
		}
	}
	return false
}

// detectJSON looks for the fields that only one of the reports has.
func detectJSON(text []byte) (Kind, bool) {
	type fields map[string]json.RawMessage
	var list []fields
	if text[0] == '{' {
		list = make([]fields, 1)
		if json.Unmarshal(text, &list[0]) != nil {
			return "", false
		}
	} else if json.Unmarshal(text, &list) != nil || len(list) == 0 {
		return "", false
	}
	has := func(names ...string) bool {
		for _, name := range names {
			if _, ok := list[0][name]; ok {
				return true
			}
		}
		return false
	}
	switch {
	case has("loads", "num_running_reqs", "num_waiting_reqs"):
		return SGLangLoads, true
	case has("numActiveRequests", "kvCacheStats", "inflightBatchingStats"):
		return TRTLLMIterations, true
	}
	return "", false
}
