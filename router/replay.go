package router

import (
	"errors"
	"math"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/score"
)

// Replay decides a recorded request again, from what its receipt says of every candidate. With the configuration that
// made the receipt the choice is the same; with another it shows what that one would have done. Ages, up to which age readings are
// fresh, counters and the state of circuits are taken from the receipt, not from cfg. The receipt must hold its candidates. A request
// that nobody can serve gives a [*RejectError], as it would live.
func Replay(r *Receipt, cfg Config) (Decision, error) {
	switch {
	case r == nil:
		return Decision{}, errors.New("router: the receipt is nil")
	case r.Rejected == rejectCode(ErrDeadline) && r.RemainingMS <= 0: // decided by the clock alone
		return r.Decision, &RejectError{Reason: ErrDeadline, Decision: r.Decision}
	case r.Rejected == rejectCode(ErrQueueFull), r.Rejected == rejectCode(ErrQueueTimeout), // by the queue, whatever the endpoints were like
		r.Rejected == rejectCode(ErrDeadline) && r.Considered+r.Excluded == 0:
		return r.Decision, &RejectError{Reason: reasonOf(r.Rejected), Decision: r.Decision}
	case r.Rejected != "" && r.Considered+r.Excluded == 0:
		return r.Decision, &RejectError{Reason: ErrNoEndpoints, Decision: r.Decision}
	case len(r.Candidates) == 0:
		return Decision{}, errors.New("router: the receipt holds no candidates")
	}
	for i := range r.Candidates {
		if r.Candidates[i].Profile == nil {
			return Decision{}, errors.New("router: candidate " + r.Candidates[i].ID + " of the receipt has no profile")
		}
	}
	if err := cfg.Validate(); err != nil {
		return Decision{}, err
	}
	cfg = cfg.resolved()
	p := &Pool{cfg: cfg, model: score.NewModel(cfg.Weights, cfg.limits())}
	v := &View{
		cfg: &p.cfg, model: p.model, decay: newDecay(float64(cfg.Freshness.Decay)), recorded: r.Candidates,
		number: r.Number, req: &Request{Class: r.Class}, size: sizes{prompt: r.PromptTokens, output: r.OutputTokens, guessed: r.OutputGuessed},
		sized:   score.Request{Prompt: float64(r.PromptTokens), Output: float64(r.OutputTokens), Adapter: r.Adapter},
		session: r.Session, lead: r.Prefix, payer: r.Tenant, blocked: r.OverShare,
		tenant:  admission.Open{Requests: r.TenantOpen, Tokens: r.TenantTokens},
		sharing: r.SharedPart, outputs: r.MeanOutput, ledger: recordedMeans(r, cfg.Replicas),
	}
	v.setReplicas(cfg.Replicas)
	if v.remaining = r.RemainingMS; v.remaining == 0 {
		v.remaining = math.Inf(1)
	}
	v.grow(len(r.Candidates))
	for i := range v.cands {
		v.restore(i)
	}
	v.finalize()
	v.at, v.fault = p.choose(v)
	d := p.decisionOf(v, r.At)
	if v.at < 0 {
		return d, p.rejected(v, false, d)
	}
	if cfg.Shadow != nil {
		d.Shadow = *p.shadow(v)
	}
	return d, nil
}
