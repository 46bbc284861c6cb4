package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/isobar-go/isobar/examples/gateway/internal/demo"
	"github.com/isobar-go/isobar/examples/gateway/internal/node"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/router/httptransport"
)

// tokenizers are the names that tokenizer knows.
func tokenizers() []string { return []string{"model-engine"} }

// tokenizer returns the function that gives the token ids of a prompt, nil for no name. The only one here is that of the
// model engines, as those of real models come with the models. Add yours: it has to give exactly the ids that the engine
// makes of the request, with its chat template; prompts that it does not know, such as images, it answers with false.
func tokenizer(name string) (func(httptransport.Prompt) ([]uint32, bool), error) {
	switch name {
	case "":
		return nil, nil
	case "model-engine":
		return demo.Tokenize, nil
	}
	return nil, fmt.Errorf("gateway: flag -tokenizer = %q is none of %v", name, tokenizers())
}

// kvFlag is one value of -kv-events.
type kvFlag struct{ text, engine, address, replay, model string }

type kvFlags []kvFlag

// String is the flag's default.
func (*kvFlags) String() string { return "" }

// Set takes one value.
func (f *kvFlags) Set(s string) error {
	parts := strings.Split(s, ",")
	v := kvFlag{text: s}
	var ok bool
	if v.engine, v.address, ok = strings.Cut(parts[0], "="); !ok || v.engine == "" || v.address == "" {
		return fmt.Errorf("%q is not ENGINE=ADDRESS", parts[0])
	}
	for _, part := range parts[1:] {
		key, value, _ := strings.Cut(part, "=")
		to := map[string]*string{"replay": &v.replay, "model": &v.model}[key]
		switch {
		case value == "":
			return fmt.Errorf("%q has no value", part)
		case to == nil:
			return fmt.Errorf("%q is neither replay=ADDRESS nor model=NAME", part)
		case *to != "":
			return fmt.Errorf("it gives %q twice", key)
		}
		*to = value
	}
	*f = append(*f, v)
	return nil
}

// apply gives the engines their labels. Without a tokenizer the engines' blocks would match no prompt, and an engine that
// is known by its events is known by nothing else: all affinity would be lost.
func (f kvFlags) apply(o *options) error {
	for _, v := range f {
		i := slices.IndexFunc(o.engines, func(e router.Endpoint) bool { return e.ID == v.engine })
		switch {
		case i < 0:
			return fmt.Errorf("gateway: flag -kv-events = %q is for %q, and there are %d engines by -engine, engine-1 the first",
				v.text, v.engine, len(o.engines))
		case o.tokenize == nil:
			return fmt.Errorf("gateway: flag -kv-events = %q needs -tokenizer: events name blocks by token ids, and no prompt's are known; "+
				"without -kv-events, what was sent to an engine is taken for what it caches", v.text)
		case o.engines[i].Labels[node.LabelKVEvents] != "":
			return fmt.Errorf("gateway: flag -kv-events = %q is the second one for %q, and an engine's events come from one address",
				v.text, v.engine)
		}
		labels := map[string]string{node.LabelKVEvents: v.address}
		for k, value := range o.engines[i].Labels {
			labels[k] = value
		}
		if v.replay != "" {
			labels[node.LabelKVReplay] = v.replay
		}
		if v.model != "" {
			labels[node.LabelKVModel] = v.model
		}
		o.engines[i].Labels = labels
	}
	return nil
}
