package calibrate_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/score/calibrate"
)

func file(t testing.TB, receipts []*router.Receipt) []byte {
	t.Helper()
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	for _, r := range receipts {
		require.NoError(t, enc.Encode(r))
	}
	return b.Bytes()
}

func TestReaderReadsWhatWasWritten(t *testing.T) {
	l := lab{truth: named(t, "h100-8b"), believed: named(t, "h100-8b"), noise: 0.1}
	want := l.receipts(50, 1)
	text := append([]byte("\n"), bytes.ReplaceAll(bytes.TrimSuffix(file(t, want), []byte("\n")), []byte("\n"), []byte("\r\n\n"))...)
	lines := calibrate.NewReader(iotest.OneByteReader(bytes.NewReader(text)))
	for i := range want {
		got, err := lines.Next()
		require.NoError(t, err)
		require.Equal(t, want[i].Outcome, got.Outcome)
		require.Equal(t, want[i].Candidates, got.Candidates)
		require.True(t, want[i].At.Equal(got.At))
	}
	for range 2 {
		_, err := lines.Next()
		require.ErrorIs(t, err, io.EOF)
	}
}

func TestBadLinesHaveTheirNumbers(t *testing.T) {
	l := lab{truth: named(t, "h100-8b"), believed: named(t, "h100-8b")}
	good := string(bytes.TrimSpace(file(t, l.receipts(1, 1))))
	for _, bad := range []string{
		"x", "null", "[]", "1", good + good, good[:len(good)-1], `{"class":"nobility"}`, `{"number":-1}`, `{"candidates":{}}`,
		`{"outcome":{"cause":"tired"}}`, `{"x":"` + strings.Repeat("y", calibrate.MaxLine) + `"}`,
	} {
		lines := calibrate.NewReader(strings.NewReader(good + "\n\n" + bad + "\n" + good))
		_, err := lines.Next()
		require.NoError(t, err)
		_, err = lines.Next()
		var line *calibrate.LineError
		require.ErrorAs(t, err, &line, "%.40s", bad)
		require.Equal(t, 3, line.Line, "%.40s", bad)
		require.ErrorContains(t, err, "calibrate: line 3: ")
		_, err = lines.Next()
		require.NoError(t, err, "the reader goes on after %.40s", bad)
		_, err = lines.Next()
		require.ErrorIs(t, err, io.EOF)

		var c calibrate.Calibrator
		n, err := c.AddLines(strings.NewReader(good + "\n" + good + "\n" + bad))
		require.ErrorAs(t, err, &line)
		require.Equal(t, 2, n)
		require.Equal(t, 2, fit(t, &c, calibrate.Options{}).Receipts)
	}
}

func TestErrorOfTheSourceStays(t *testing.T) {
	broken := errors.New("cable")
	lines := calibrate.NewReader(io.MultiReader(strings.NewReader("{}\n{\"pol"), iotest.ErrReader(broken)))
	_, err := lines.Next()
	require.NoError(t, err)
	for range 2 {
		_, err = lines.Next()
		require.ErrorIs(t, err, broken)
		require.ErrorContains(t, err, "calibrate: reading after line 1")
	}
}

func FuzzReader(f *testing.F) {
	l := lab{truth: named(f, "h100-8b"), believed: named(f, "h100-8b")}
	f.Add(file(f, l.receipts(1, 1)))
	f.Add([]byte("{}\nnull\n\n{\"outcome\":{}}"))
	f.Add([]byte(`{"endpoint":"a","outcome":{"first_token_ms":1e308,"completion_ms":1e309}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		lines := calibrate.NewReader(bytes.NewReader(text))
		var c calibrate.Calibrator
		number, receipts := 0, 0
		for {
			r, err := lines.Next()
			var line *calibrate.LineError
			if errors.As(err, &line) {
				if line.Line <= number || line.Line > 1+bytes.Count(text, []byte("\n")) {
					t.Fatalf("line %d after line %d", line.Line, number)
				}
				number = line.Line
				continue
			}
			if err != nil {
				require.ErrorIs(t, err, io.EOF)
				break
			}
			receipts++
			c.Add(r)
		}
		r, err := c.Fit(calibrate.Options{MinReceipts: 20, Splits: 1})
		require.NoError(t, err)
		require.Equal(t, receipts, r.Receipts)
		_ = r.String()
		_, err = json.Marshal(r)
		require.NoError(t, err)
	})
}
