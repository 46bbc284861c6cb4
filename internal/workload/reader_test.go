package workload

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func parse(text string, o ReadOptions) (Workload, error) {
	r, err := NewReader(strings.NewReader(text), o)
	if err != nil {
		return nil, err
	}
	return ReadAll(r)
}

func zipped(tb testing.TB, text string) string {
	tb.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := z.Write([]byte(text))
	require.NoError(tb, err)
	require.NoError(tb, z.Close())
	return b.String()
}

// common is the number of leading blocks with equal ids.
func common(a, b Request) int {
	x, y := a.AppendBlocks(nil), b.AppendBlocks(nil)
	n := 0
	for n < min(len(x), len(y)) && x[n] == y[n] {
		n++
	}
	return n
}

func TestReadMooncake(t *testing.T) {
	w, err := ReadFile(filepath.Join("testdata", "mooncake.jsonl"), ReadOptions{})
	require.NoError(t, err)
	require.NoError(t, w.Check())
	require.Len(t, w, 3)
	assert.Equal(t, []time.Duration{0, 1500 * time.Millisecond, 1500500 * time.Microsecond},
		[]time.Duration{w[0].Arrival, w[1].Arrival, w[2].Arrival})
	assert.EqualValues(t, 1100, w[0].PromptTokens)
	assert.EqualValues(t, 20, w[0].OutputTokens)
	assert.EqualValues(t, 1, w[2].OutputTokens, "an output of 0 counts as 1")
	assert.EqualValues(t, 1100/16, w[0].PromptBlocks(), "whole blocks only")
	assert.EqualValues(t, 96, w[1].PromptBlocks())
	assert.Equal(t, 64, common(w[0], w[1]), "two blocks of 512")
	assert.Zero(t, common(w[0], w[2]))
	assert.EqualValues(t, 2, w[2].ID)
}

func TestReadBlocks16(t *testing.T) {
	r, err := OpenFile(filepath.Join("testdata", "blocks16.jsonl"), ReadOptions{})
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	assert.Equal(t, FormatBlocks16, r.Format())
	w, err := ReadAll(r)
	require.NoError(t, err)
	assert.Equal(t, 46_926_808*time.Nanosecond, w[0].Arrival)
	assert.Equal(t, 2, common(w[0], w[1]))
	assert.EqualValues(t, 4, w[1].PromptBlocks())
	assert.Equal(t, 2, r.Line())
}

func TestReadAzure(t *testing.T) {
	for name, second := range map[string]time.Duration{"azure.csv": 4_314_600_000, "azure_dated.csv": 4_314_579_000} {
		w, err := ReadFile(filepath.Join("testdata", name), ReadOptions{})
		require.NoError(t, err)
		require.NoError(t, w.Check())
		require.Len(t, w, 2)
		assert.EqualValues(t, 0, w[0].Arrival)
		assert.Equal(t, second, w[1].Arrival, name)
		assert.EqualValues(t, 396, w[1].PromptTokens)
		assert.EqualValues(t, 109, w[1].OutputTokens)
		assert.EqualValues(t, 24, w[1].PromptBlocks())
		assert.Zero(t, common(w[0], w[1]))
	}
}

func TestReadSessions(t *testing.T) {
	path := filepath.Join("testdata", "sessions.jsonl")
	w, err := ReadFile(path, ReadOptions{})
	require.NoError(t, err)
	require.NoError(t, w.Check())
	require.Len(t, w, 6)
	assert.EqualValues(t, 1, w[0].Session)
	assert.Equal(t, []int{0, 1, 0, 0, 2, 3}, []int{w[0].Turn, w[1].Turn, w[2].Turn, w[3].Turn, w[4].Turn, w[5].Turn})
	assert.Equal(t, 4*time.Second, w[1].Think)
	assert.Equal(t, 9*time.Second, w[1].Arrival)
	assert.EqualValues(t, 15*4, w[0].PromptBlocks(), "15 blocks of 64 are known, of 62 whole ones of 16")
	assert.Equal(t, 60, common(w[0], w[1]), "within a session all blocks")
	assert.Equal(t, 31, common(w[0], w[2]), "across sessions the shared 500 tokens")
	assert.Equal(t, 8, common(w[0], w[3]), "and no more than there is")
	assert.Equal(t, 16, common(w[0], w[4]), "the same beginning, as far as it goes")
	assert.Equal(t, 16, common(w[2], w[4]))
	assert.Zero(t, common(w[0], w[5]), "another beginning: not the session's prompt")

	grown, err := parse(`{"session":0,"t_ms":0,"input_length":128,"output_length":9,"think_ms":0,"shared_prefix_tokens":500,"runs":[[1,2]]}
{"session":0,"t_ms":9,"input_length":640,"output_length":9,"think_ms":0,"shared_prefix_tokens":500,"runs":[[1,10]]}
{"session":1,"t_ms":0,"input_length":640,"output_length":9,"think_ms":0,"shared_prefix_tokens":500,"runs":[[20,10]]}
`, ReadOptions{})
	require.NoError(t, err)
	require.NoError(t, grown.Check())
	assert.Equal(t, 8, common(grown[0], grown[1]))
	assert.Equal(t, 8, common(grown[1], grown[2]), "what came after the session's beginning is its own")

	apart, err := ReadFile(path, ReadOptions{SeparateSessions: true})
	require.NoError(t, err)
	require.NoError(t, apart.Check())
	assert.Equal(t, 60, common(apart[0], apart[1]))
	assert.Equal(t, 16, common(apart[0], apart[4]))
	assert.Zero(t, common(apart[0], apart[2]))
}

func TestTracesDoNotMeet(t *testing.T) {
	text := `{"timestamp":0,"input_length":16,"output_length":1,"hash_ids":[3]}`
	a, err := parse(text, ReadOptions{Format: FormatBlocks16, Name: "a"})
	require.NoError(t, err)
	again, err := parse(text, ReadOptions{Format: FormatBlocks16, Name: "a"})
	require.NoError(t, err)
	b, err := parse(text, ReadOptions{Format: FormatBlocks16, Name: "b"})
	require.NoError(t, err)
	assert.Equal(t, a, again)
	assert.Zero(t, common(a[0], b[0]))
}

func TestReaderTakes(t *testing.T) {
	line := `{"timestamp":0,"input_length":20,"output_length":1,"hash_ids":[3]}`
	for name, text := range map[string]string{
		"no newline at the end": line,
		"blank lines":           "\n \n" + line + "\n\t\r\n",
		"carriage returns":      line + "\r\n",
		"unknown keys":          `{"x":[{}],` + line[1:],
		"gzip":                  zipped(t, line+"\n"),
		"gzip in two parts":     zipped(t, line[:10]) + zipped(t, line[10:]),
	} {
		t.Run(name, func(t *testing.T) {
			w, err := parse(text, ReadOptions{Format: FormatBlocks16})
			require.NoError(t, err)
			require.Len(t, w, 1)
			auto, err := parse(text, ReadOptions{})
			require.NoError(t, err)
			assert.EqualValues(t, 20, auto[0].PromptTokens)
		})
	}
	w, err := parse("", ReadOptions{Format: FormatMooncake})
	require.NoError(t, err)
	assert.Empty(t, w)
	w, err = parse(`{"timestamp":0,"input_length":10,"output_length":1,"hash_ids":[3]}`, ReadOptions{Format: FormatBlocks16})
	require.NoError(t, err)
	assert.Empty(t, w[0].Segments, "no whole block")
	w, err = parse(`{"session":0,"t_ms":5,"input_length":130,"output_length":10,"think_ms":0,"shared_prefix_tokens":15,"runs":[[1,2]]}`,
		ReadOptions{})
	require.NoError(t, err)
	assert.Len(t, w[0].Segments, 1, "no whole block is shared")
	w, err = parse("\uFEFFtimestamp_ms,input_length,output_length\n1.001,2,3\n", ReadOptions{})
	require.NoError(t, err)
	assert.Len(t, w, 1)
	assert.EqualValues(t, 1_001_000, w[0].Arrival, "rounded, not cut")
}

func TestReaderRefuses(t *testing.T) {
	hash := func(fields string) string {
		return `{"timestamp":5,"input_length":40,"output_length":1,` + fields + `}`
	}
	good := hash(`"hash_ids":[3,4]`)
	session := func(old, new string) string {
		return strings.Replace(`{"session":0,"t_ms":5,"input_length":130,"output_length":10,"think_ms":0,"shared_prefix_tokens":64,"runs":[[1,2]]}`,
			old, new, 1)
	}
	long := fmt.Sprintf(`{"timestamp":5,%s"input_length":40,"output_length":1,"hash_ids":[3,4]}`, strings.Repeat(" ", 200))
	for _, c := range []struct {
		format Format
		text   string
		want   string
	}{
		{FormatBlocks16, good + "\nnonsense", "t:2: invalid character"},
		{FormatBlocks16, good + "\n\n" + good[:30], "t:3: unexpected end of JSON input"},
		{FormatBlocks16, good + good, "t:1: invalid character '{' after top-level value"},
		{FormatBlocks16, "[]", "t:1: json: cannot unmarshal array"},
		{FormatBlocks16, hash(`"hash_ids":[3]`), "t:1: hash_ids has 1 blocks of 16 tokens, input_length is 40"},
		{FormatBlocks16, hash(`"hash_ids":[1,2,3,4]`), "hash_ids has 4 blocks"},
		{FormatBlocks16, good + "\n" + hash(`"hash_ids":[null,4]`), "t:2: null is not a value"},
		{FormatBlocks16, hash(`"hash_ids":[-3,4]`), "t:1: json: cannot unmarshal number -3"},
		{FormatBlocks16, hash(`"hash_ids":[3.5,4]`), "t:1: json: cannot unmarshal number 3.5"},
		{FormatBlocks16, hash(`"hash_ids":[3,281474976710656]`), "hash_ids has 281474976710656, it must be below 281474976710656"},
		{FormatBlocks16, good + "\n" + strings.Replace(good, ":5", ":4", 1), "t:2: timestamp is 4ms, before that of the line before, 5ms"},
		{FormatBlocks16, strings.Replace(good, `"timestamp":5,`, "", 1), "timestamp is missing"},
		{FormatBlocks16, strings.Replace(good, ":5", ":-1", 1), "timestamp is -1 ms, it must be in"},
		{FormatBlocks16, strings.Replace(good, ":5", ":1e13", 1), "timestamp is 1e+13 ms, it must be in"},
		{FormatBlocks16, strings.Replace(good, `"input_length":40,`, "", 1), "input_length is missing"},
		{FormatBlocks16, strings.Replace(good, ":40", ":0", 1), "input_length is 0, it must be in"},
		{FormatBlocks16, strings.Replace(good, ":40", ":2147483648", 1), "input_length is 2147483648"},
		{FormatBlocks16, strings.Replace(good, `"output_length":1,`, "", 1), "output_length is missing"},
		{FormatBlocks16, strings.Replace(good, `h":1`, `h":-1`, 1), "output_length is -1"},
		{FormatBlocks16, good + "\n" + long, "t:2: the line is not shorter than MaxLine, 160 bytes"},
		{FormatMooncake, good, "hash_ids has 2 blocks of 512 tokens, input_length is 40"},
		{FormatSessions, session(`"session":0,`, ""), "t:1: session is missing"},
		{FormatSessions, session(`:0,`, ":-1,"), "session is -1"},
		{FormatSessions, session(`"t_ms":5,`, ""), "t_ms is missing"},
		{FormatSessions, session(`"think_ms":0,`, ""), "think_ms is missing"},
		{FormatSessions, session(`"think_ms":0`, `"think_ms":-1`), "think_ms is -1 ms"},
		{FormatSessions, session(`"shared_prefix_tokens":64,`, ""), "shared_prefix_tokens is missing"},
		{FormatSessions, session(`:64`, ":-64"), "shared_prefix_tokens is -64"},
		{FormatSessions, session(`[[1,2]]`, "[[1]]"), "runs[0] has 1 numbers, it must have 2"},
		{FormatSessions, session(`[[1,2]]`, "[[1,1],[2,1,3]]"), "runs[1] has 3 numbers, it must have 2"},
		{FormatSessions, session(`[[1,2]]`, "[[1,0],[2,2]]"), "runs[0] is [1 0]"},
		{FormatSessions, session(`[[1,2]]`, "[[281474976710656,2]]"), "runs[0] is [281474976710656 2]"},
		{FormatSessions, session(`[[1,2]]`, "[[1,4]]"), "runs has 4 blocks of 64 tokens, input_length is 130"},
		{FormatSessions, session(`[[1,2]]`, "[[1,2147483647],[1,2147483647]]"), "runs has 4294967294 blocks"},
		{FormatSessions, session("", "") + "\n" + session(":5", ":4"), "t:2: t_ms is 4ms, before that of the session's line before"},
		{FormatAzure, "a,b,c\n", `t:1: the header is "a,b,c", it must be`},
		{FormatAzure, "", "t: it has no line to tell its format"},
		{FormatAzure, headerMillis + "\n1,2", "t:2: 2 columns, there must be 3"},
		{FormatAzure, headerMillis + "\n1,2,3,4", "t:2: 4 columns, there must be 3"},
		{FormatAzure, headerMillis + "\nx,2,3", `t:2: timestamp: strconv.ParseFloat: parsing "x"`},
		{FormatAzure, headerMillis + "\nnan,2,3", "t:2: timestamp is missing or not a number"},
		{FormatAzure, headerMillis + "\n1,x,3", "t:2: input_length: strconv"},
		{FormatAzure, headerMillis + "\n1,2,", "t:2: output_length: strconv"},
		{FormatAzure, headerMillis + "\n2,2,2\n1,2,2", "t:3: timestamp is 1ms, before"},
		{FormatAzure, headerDated + "\nyesterday,2,2", "t:2: timestamp: parsing time"},
		{FormatAzure, headerDated + "\n2023-11-16 18:15:47,2,2\n2023-11-16 18:15:46,2,2", "t:3: timestamp is -1000 ms"},
		{FormatAuto, "", "t: it has no line to tell its format"},
		{FormatAuto, "{}", "t:1: no known format begins with"},
		{FormatAuto, "1,2,3", "t:1: no known format begins with"},
		{FormatAuto, hash(`"hash_ids":[3,4,5,6]`), "t:1: no known format begins with"},
		{"xml", "", `Format is "xml"`},
	} {
		w, err := parse(c.text, ReadOptions{Format: c.format, Name: "t", MaxLine: 160})
		require.ErrorContains(t, err, c.want)
		assert.True(t, strings.HasPrefix(err.Error(), "workload: "), err)
		assert.Nil(t, w, "nothing half done")
	}
	for _, n := range []int{-1, 15, 1<<30 + 1} {
		_, err := parse("", ReadOptions{MaxLine: n})
		require.ErrorContains(t, err, "MaxLine is ")
	}
}

func TestLineLimit(t *testing.T) {
	line := `{"timestamp":5,"input_length":40,"output_length":1,"hash_ids":[3,4]}` + "\n"
	o := ReadOptions{Format: FormatBlocks16, MaxLine: len(line) + 1}
	w, err := parse(line+line, o)
	require.NoError(t, err)
	assert.Len(t, w, 2)
	_, err = parse(line+" "+line+"\n", o)
	require.NoError(t, err, "as long as the buffer still fits")
	_, err = parse(line+"  "+line, o)
	require.ErrorContains(t, err, ":2: the line is not shorter than MaxLine")
}

func TestReaderPassesFaultsOfTheInput(t *testing.T) {
	line := `{"timestamp":5,"input_length":40,"output_length":1,"hash_ids":[3,4]}` + "\n"
	whole := zipped(t, strings.Repeat(line, 1000))
	r, err := NewReader(strings.NewReader(whole[:len(whole)/2]), ReadOptions{Name: "t"})
	require.NoError(t, err)
	w, err := ReadAll(r)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.ErrorContains(t, err, fmt.Sprintf("workload: t:%d: ", r.Line()))
	assert.Nil(t, w)
	_, ok := r.Next()
	assert.False(t, ok, "the error stays")
	require.Error(t, r.Err())

	_, err = parse("\x1f\x8bnonsense", ReadOptions{Name: "t"})
	require.ErrorContains(t, err, "workload: t: ")

	broken := errors.New("broken")
	r, err = NewReader(io.MultiReader(strings.NewReader(line), iotest.ErrReader(broken)), ReadOptions{})
	require.NoError(t, err)
	_, ok = r.Next()
	assert.True(t, ok)
	_, ok = r.Next()
	assert.False(t, ok)
	require.ErrorIs(t, r.Err(), broken)

	_, err = NewReader(iotest.ErrReader(broken), ReadOptions{})
	require.ErrorIs(t, err, broken)
}

func TestFiles(t *testing.T) {
	_, err := ReadFile(filepath.Join(t.TempDir(), "none"), ReadOptions{})
	require.ErrorIs(t, err, os.ErrNotExist)
	path := filepath.Join(t.TempDir(), "bad.jsonl")
	require.NoError(t, os.WriteFile(path, []byte("x\n"), 0o600))
	_, err = ReadFile(path, ReadOptions{Format: FormatMooncake})
	require.ErrorContains(t, err, "workload: bad.jsonl:1: ")
	_, err = OpenFile(path, ReadOptions{})
	require.ErrorContains(t, err, "workload: bad.jsonl:1: no known format")
	r, err := OpenFile(path, ReadOptions{Format: FormatMooncake})
	require.NoError(t, err)
	require.NoError(t, r.Close())
	require.NoError(t, r.Close(), "a second time does nothing")
}
