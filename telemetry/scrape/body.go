package scrape

import (
	"compress/gzip"
	"io"
	"sync"
)

// limited reads at most left bytes and fails with errTooLarge where there are more. It remembers the error that ended it,
// since a parser may swallow it. One goroutine uses it.
type limited struct {
	r    io.Reader
	left int64
	err  error
}

func (l *limited) Read(p []byte) (int, error) {
	if l.err != nil {
		return 0, l.err
	}
	if len(p) == 0 {
		return 0, nil
	}
	var probe [1]byte
	over := l.left == 0
	if over {
		p = probe[:]
	} else if int64(len(p)) > l.left {
		p = p[:l.left]
	}
	n, err := l.r.Read(p)
	if over && n > 0 {
		n, err = 0, errTooLarge
	}
	l.left -= int64(n)
	l.err = err
	return n, err
}

// broken returns the error that ended the body too soon; nil = none did, or it has not ended.
func (l *limited) broken() error {
	if l.err == io.EOF {
		return nil
	}
	return l.err
}

// inflaters are used again by later polls: each holds some 40 KB. Any goroutine may use them.
type inflaters struct{ pool sync.Pool }

// open begins to read a gzip stream. Both its sides are limited, since empty blocks compress nothing.
func (f *inflaters) open(raw io.Reader, limit int64) (*gzip.Reader, error) {
	raw = &limited{r: raw, left: limit}
	if z, ok := f.pool.Get().(*gzip.Reader); ok {
		return z, z.Reset(raw)
	}
	return gzip.NewReader(raw)
}

func (f *inflaters) close(z *gzip.Reader) { f.pool.Put(z) }
