// Command replay compares routing policies in a simulation of LLM engines in which the real router decides: isobar's default beside
// the rules that others have published, on built-in workloads or a recorded trace.
//
//	go run ./examples/replay                    all policies, within a minute
//	go run ./examples/replay -quick             fewer of everything, within seconds
//	go run ./examples/replay -trace FILE        a recorded trace (Mooncake, Azure or session format, plain or gzip)
//
// It writes one table to the terminal, and into a folder one page with plots (report.html), figures.csv, runs.csv and report.json. The
// same flags make the same files, byte for byte.
//
// With -against it decides recorded requests again under another configuration, and says what would have changed:
//
//	go run ./examples/replay -quick -receipts receipts.jsonl
//	go run ./examples/replay -against receipts.jsonl -weights interference=0.4
//
// Receipts of a real gateway will do as well: those that a router.JSONLines observer writes.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"golang.org/x/term"

	"github.com/isobar-go/isobar/examples/replay/internal/against"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends it at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program: the status is 0 after a good end, 1 after a bad one, 2 for wrong arguments.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, err)
		return 2
	}
	if o.against != "" {
		err = decideAgain(o, stdout)
	} else {
		err = compare(ctx, o, stdout, stderr)
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

// isTerminal says that what is written there is read by a person at once.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

func decideAgain(o *options, stdout io.Writer) (err error) {
	f, err := os.Open(o.against)
	if err != nil {
		return fmt.Errorf("replay: flag -against: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	s, err := against.Run(f, against.Config{Router: o.router, Examples: o.examples})
	if err != nil {
		return fmt.Errorf("replay: flag -against: %s: %w", o.against, err)
	}
	if err := s.Text(stdout); err != nil || !o.given["out"] {
		return err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return fmt.Errorf("replay: flag -out: %w", err)
	}
	return writeFile(filepath.Join(o.out, "against.json"), s.JSON)
}

// writeFile makes a file of what write writes, or none where that fails.
func writeFile(name string, write func(io.Writer) error) error {
	f, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	b := bufio.NewWriterSize(f, 1<<20)
	err = errors.Join(write(b), b.Flush(), f.Close())
	if err != nil {
		return errors.Join(fmt.Errorf("replay: writing %s: %w", name, err), os.Remove(name))
	}
	return nil
}
