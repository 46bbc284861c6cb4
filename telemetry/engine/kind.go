package engine

import "fmt"

// Kind names a kind of engine together with the document that is read of it. It is a plain value.
type Kind string

const (
	// VLLM is vLLM, its first and its second scheduler generation, also under the name prefix that Ray gives it.
	VLLM Kind = "vllm"
	// SGLang is the Prometheus text of SGLang, also as its gateway passes it on with other name prefixes.
	SGLang Kind = "sglang"
	// SGLangLoads is the JSON load report of SGLang, in its newer (/v1/loads) and in its older form (/get_load).
	SGLangLoads Kind = "sglang-loads"
	// Triton is TensorRT-LLM as a backend of the Triton server.
	Triton Kind = "triton"
	// TRTLLM is the Prometheus text of trtllm-serve.
	TRTLLM Kind = "trtllm"
	// TRTLLMIterations is the JSON list of iteration statistics that trtllm-serve prints at the path where other engines
	// have their Prometheus text. It holds only what happened since it was last read: see the package documentation.
	TRTLLMIterations Kind = "trtllm-iterations"
	// TGI is Text Generation Inference.
	TGI Kind = "tgi"
	// LlamaCPP is the server of llama.cpp and its forks.
	LlamaCPP Kind = "llamacpp"
	// LMDeploy is LMDeploy with either of its backends.
	LMDeploy Kind = "lmdeploy"
	// TokenSpeed is TokenSpeed. Its names are taken to be those of SGLang or vLLM behind its own prefix.
	TokenSpeed Kind = "tokenspeed"
)

// Kinds returns all kinds in a fixed order. The slice belongs to the caller.
func Kinds() []Kind {
	out := make([]Kind, len(dialects))
	for i := range dialects {
		out[i] = dialects[i].kind
	}
	return out
}

// Path returns the path at which a server of the kind has the document by default, "" for an unknown kind.
func (k Kind) Path() string {
	if d := k.dialect(); d != nil {
		return d.path
	}
	return ""
}

// dialect returns nil for an unknown kind.
func (k Kind) dialect() *dialect {
	for i := range dialects {
		if dialects[i].kind == k {
			return &dialects[i]
		}
	}
	return nil
}

// KVMeaning says what an engine counts as occupied in its KV cache. The zero value is unknown. At the same load the
// figure of a KVOccupied engine lies far above that of a KVHeld one, as soon as its cache is warm.
type KVMeaning uint8

const (
	// KVUnknown is an engine that reports no KV figure or of which the meaning is not known.
	KVUnknown KVMeaning = iota
	// KVHeld counts what unfinished requests hold. Cached prefixes that can be evicted at once count as free: a full cache
	// can read 0, and 1 means that requests have to wait or are preempted.
	KVHeld
	// KVOccupied counts cached prefixes too, until something evicts them: 1 is the normal state of a warm engine and no
	// sign of pressure.
	KVOccupied
)

// String returns the name in lower case, "kv-meaning(N)" for a value that is none of the constants.
func (m KVMeaning) String() string {
	switch m {
	case KVUnknown:
		return "unknown"
	case KVHeld:
		return "held"
	case KVOccupied:
		return "occupied"
	}
	return fmt.Sprintf("kv-meaning(%d)", uint8(m))
}

// Comparable reports whether the KV figures of two engines mean the same, so that the lesser one has more room. What is
// unknown is comparable with nothing, not even with itself.
func (m KVMeaning) Comparable(other KVMeaning) bool {
	return m == other && (m == KVHeld || m == KVOccupied)
}

// KVMeaning returns what KVShare and KVUsed mean in a snapshot of the kind: KVHeld for vLLM (its free blocks include
// cached ones that no request uses), SGLang (its usage is without the evictable part of the radix cache) and TensorRT-LLM
// (reusable blocks are in its free queue); KVOccupied for llama.cpp (an idle slot keeps its prompt) and LMDeploy (cached
// blocks are no free blocks); KVUnknown for TokenSpeed, for TGI, which has no such figure, and for an unknown kind.
func (k Kind) KVMeaning() KVMeaning {
	if d := k.dialect(); d != nil {
		return d.kv
	}
	return KVUnknown
}
