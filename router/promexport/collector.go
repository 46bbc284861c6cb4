package promexport

import (
	"errors"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/isobar-go/isobar/router"
)

// DefaultNamespace is the first part of every metric's name where [Options] gives none.
const DefaultNamespace = "isobar"

// Options configure a [Collector]. The zero value is usable. Options are a plain value, read by [New] alone.
type Options struct {
	// Namespace is the first part of every metric's name, a legal metric name itself. "" = [DefaultNamespace].
	Namespace string
	// ConstLabels are added to every series, to tell several pools apart. None may be called endpoint, outcome, state or
	// reason. nil = none.
	ConstLabels prometheus.Labels
}

// Collector is a [prometheus.Collector] over one pool. It is immutable and may be used from any goroutine.
type Collector struct {
	pool      *router.Pool
	fault     *prometheus.Desc // says why nothing can be collected; nil = all is well
	pools     []described[router.Stats]
	endpoints []described[router.EndpointStats]
}

var _ prometheus.Collector = (*Collector)(nil)

// errNoPool is what a registry says of a collector without a pool.
var errNoPool = errors.New("promexport: pool is nil")

// described is a family with its description, which a registry holds against those of other collectors.
type described[S any] struct {
	family[S]
	desc *prometheus.Desc
}

// New makes a collector of p. It registers nothing. A nil p, or options that make an illegal name or label, show as an
// error of the registry's Register.
func New(p *router.Pool, opts Options) *Collector {
	if p == nil {
		return &Collector{fault: prometheus.NewInvalidDesc(errNoPool)}
	}
	if opts.Namespace == "" {
		opts.Namespace = DefaultNamespace
	}
	return &Collector{
		pool:      p,
		pools:     describe(poolFamilies(), opts),
		endpoints: describe(endpointFamilies(), opts, "endpoint"),
	}
}

func describe[S any](families []family[S], opts Options, labels ...string) []described[S] {
	out := make([]described[S], 0, len(families))
	for _, f := range families {
		names := labels
		if f.label != "" {
			names = append(names[:len(names):len(names)], f.label)
		}
		name := prometheus.BuildFQName(opts.Namespace, "", f.name)
		out = append(out, described[S]{f, prometheus.NewDesc(name, f.help, names, opts.ConstLabels)})
	}
	return out
}

// Describe sends the description of every metric that Collect may send.
func (c *Collector) Describe(to chan<- *prometheus.Desc) {
	if c.fault != nil {
		to <- c.fault
		return
	}
	for _, d := range c.pools {
		to <- d.desc
	}
	for _, d := range c.endpoints {
		to <- d.desc
	}
}

// Collect reads the pool once and sends its figures.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	if c.fault != nil {
		to <- prometheus.NewInvalidMetric(c.fault, errNoPool)
		return
	}
	stats := c.pool.Stats()
	for i := range c.pools {
		c.pools[i].send(to, &stats)
	}
	for i := range stats.Endpoints {
		e := &stats.Endpoints[i]
		id := labelValue(e.ID)
		for j := range c.endpoints {
			c.endpoints[j].send(to, e, id)
		}
	}
}

// send sends the samples of which the value is known.
func (d *described[S]) send(to chan<- prometheus.Metric, of *S, labels ...string) {
	for _, s := range d.samples {
		value, known := s.value(of)
		if !known {
			continue
		}
		values := labels
		if d.label != "" {
			values = append(values[:len(values):len(values)], s.label)
		}
		m, err := prometheus.NewConstMetric(d.desc, d.kind, value, values...)
		if err != nil {
			m = prometheus.NewInvalidMetric(d.desc, err)
		}
		to <- m
	}
}

// labelValue is id as a label, which must be UTF-8. An ID that is not is quoted, and so is one that begins with a quote, so
// that no two IDs become one label.
func labelValue(id string) string {
	if utf8.ValidString(id) && !strings.HasPrefix(id, `"`) {
		return id
	}
	return strconv.Quote(id)
}
