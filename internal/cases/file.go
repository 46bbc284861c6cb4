package cases

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxFile is the greatest size of a case file, in bytes.
const MaxFile = 1 << 20

const separator = "----"

// File is a parsed case. It is immutable: any number of goroutines may use one.
type File struct {
	blocks []block
	lines  []string // of the whole file, without line ends
	raw    []string // the same with them
}

// block is one command with its input and what it must print.
type block struct {
	line     int    // of the command, from 1
	command  string // continued lines joined
	input    []inputLine
	expected []string
	// lines[from:to] is the expected part as it stands in the file, with the inner separators of the double form.
	from, to int
}

type inputLine struct {
	line int
	text string
}

// SyntaxError says which line of a file is not in the format. It is a plain value.
type SyntaxError struct {
	// Line is counted from 1.
	Line int
	// Text says what is wrong.
	Text string
}

// Error is the text with the line.
func (e *SyntaxError) Error() string { return fmt.Sprintf("cases: line %d: %s", e.Line, e.Text) }

// Parse reads a case. The error is a [*SyntaxError] for the first line that is not in the format, or says that the file is
// longer than [MaxFile]. What the commands mean is found out when they run.
func Parse(data []byte) (*File, error) {
	if len(data) > MaxFile {
		return nil, fmt.Errorf("cases: the file has %d bytes, more than %d", len(data), MaxFile)
	}
	f := &File{}
	for line := range bytes.Lines(data) {
		f.raw = append(f.raw, string(line))
		f.lines = append(f.lines, strings.TrimSuffix(strings.TrimSuffix(string(line), "\n"), "\r"))
		if !utf8.Valid(line) {
			return nil, &SyntaxError{len(f.lines), "is not UTF-8"}
		}
	}
	for at := 0; at < len(f.lines); {
		text := strings.TrimSpace(f.lines[at])
		if text == "" || strings.HasPrefix(text, "#") {
			at++
			continue
		}
		next, err := f.parseBlock(at)
		if err != nil {
			return nil, err
		}
		at = next
	}
	return f, nil
}

// parseBlock reads the block that begins at a line and returns the index of the first line behind it.
func (f *File) parseBlock(at int) (int, error) {
	b := block{line: at + 1, command: strings.TrimSpace(f.lines[at])}
	for at++; strings.HasSuffix(b.command, `\`) && at < len(f.lines) && f.lines[at] != separator; at++ {
		b.command = strings.TrimSpace(strings.TrimSuffix(b.command, `\`)) + " " + strings.TrimSpace(f.lines[at])
	}
	if b.command == separator {
		return 0, &SyntaxError{b.line, "a separator without a command before it"}
	}
	if _, err := parseCommand(b.command); err != nil {
		return 0, &SyntaxError{b.line, err.Error()}
	}
	for ; at < len(f.lines) && f.lines[at] != separator; at++ {
		text := strings.TrimSpace(f.lines[at])
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		if _, err := parseCommand(text); err != nil {
			return 0, &SyntaxError{at + 1, err.Error()}
		}
		b.input = append(b.input, inputLine{at + 1, text})
	}
	if at == len(f.lines) {
		return 0, &SyntaxError{b.line, fmt.Sprintf("no line %q after this command", separator)}
	}
	at++
	b.from = at
	if at < len(f.lines) && f.lines[at] == separator {
		if err := f.parseDouble(&b); err != nil {
			return 0, err
		}
	} else {
		for b.to = at; b.to < len(f.lines) && strings.TrimSpace(f.lines[b.to]) != ""; b.to++ {
			b.expected = append(b.expected, f.lines[b.to])
		}
	}
	f.blocks = append(f.blocks, b)
	return b.to, nil
}

// parseDouble reads an expected part between two pairs of separators; b.from is the second line of the first pair.
func (f *File) parseDouble(b *block) error {
	for at := b.from + 1; at+1 < len(f.lines); at++ {
		if f.lines[at] != separator || f.lines[at+1] != separator {
			b.expected = append(b.expected, f.lines[at])
			continue
		}
		b.to = at + 2
		if b.to < len(f.lines) && f.lines[b.to] != "" {
			return &SyntaxError{b.to + 1, "a blank line must follow a double separator"}
		}
		return nil
	}
	return &SyntaxError{b.from + 1, "the double separator is not closed"}
}

// Difference is a block that did not print what the file says. It is a plain value.
type Difference struct {
	// Line of the command, counted from 1, and the command itself.
	Line    int
	Command string
	// Expected and Actual are the lines in the file and those that came out.
	Expected, Actual []string
}

// String is the difference as text of several lines: "-" before what the file says, "+" before what came out.
func (d Difference) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "line %d: %s\n", d.Line, d.Command)
	for _, part := range []struct {
		sign  string
		lines []string
	}{{"-", d.Expected}, {"+", d.Actual}} {
		if len(part.lines) == 0 {
			fmt.Fprintf(&b, "  %s (nothing)\n", part.sign)
		}
		for _, line := range part.lines {
			fmt.Fprintf(&b, "  %s %s\n", part.sign, line)
		}
	}
	return b.String()
}

// Result is what running a file gave. It belongs to the caller.
type Result struct {
	// Differences are the blocks that printed something else, in the order of the file; none when the case has passed.
	Differences []Difference
	printed     [][]string // by block
}

// Run runs the case on a new machine, to its end even after a difference.
func (f *File) Run() Result { return f.run(NewMachine()) }

func (f *File) run(m *Machine) Result {
	var r Result
	for i := range f.blocks {
		b := &f.blocks[i]
		printed := m.runBlock(b)
		r.printed = append(r.printed, printed)
		if !matches(b.expected, printed) {
			r.Differences = append(r.Differences, Difference{b.line, b.command, b.expected, printed})
		}
	}
	return r
}

// Rewrite returns the file with what came out in the place of what was expected. Comments, layout, line ends and parts that
// match stay as they are. The result must be of the same file.
func (f *File) Rewrite(r Result) []byte {
	var out bytes.Buffer
	done := 0
	for i := range f.blocks {
		b := &f.blocks[i]
		if i >= len(r.printed) || matches(b.expected, r.printed[i]) {
			continue
		}
		for _, line := range f.raw[done:b.from] {
			out.WriteString(line)
		}
		done = b.to
		end := "\n"
		switch last := f.raw[b.from-1]; {
		case strings.HasSuffix(last, "\r\n"):
			end = "\r\n"
		case !strings.HasSuffix(last, "\n"):
			out.WriteString(end) // the file ended with the separator
		}
		for _, line := range layOut(r.printed[i]) {
			out.WriteString(line + end)
		}
	}
	for _, line := range f.raw[done:] {
		out.WriteString(line)
	}
	return out.Bytes()
}

// layOut puts lines into the double form where one of them is blank.
func layOut(lines []string) []string {
	for _, line := range lines {
		if strings.TrimSpace(line) == "" {
			return append(append([]string{separator}, lines...), separator, separator)
		}
	}
	return lines
}

// matches compares line by line, blanks at the ends of lines aside.
func matches(expected, printed []string) bool {
	if len(expected) != len(printed) {
		return false
	}
	for i, want := range expected {
		want, got := strings.TrimRight(want, " \t\r"), strings.TrimRight(printed[i], " \t\r")
		if head, open := strings.CutSuffix(want, " ..."); open && strings.HasPrefix(got, head) {
			continue
		}
		if want != got {
			return false
		}
	}
	return true
}
