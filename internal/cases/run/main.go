// Command run runs case files: see the package cases for what they are.
//
//	go run ./internal/cases/run [-rewrite] PATH...
//
// A path is a file, or a folder of which all files *.case are run, at any depth. It prints every difference and last one
// line "N passed, M failed", files counting. The exit status is 1 when any has failed and 2 when one cannot be read or
// parsed. With -rewrite the results are written into the files.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/isobar-go/isobar/internal/cases"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

const (
	statusFailed     = 1
	statusUnreadable = 2
)

func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("run", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprintln(stderr, "usage: run [-rewrite] PATH...")
		flags.PrintDefaults()
	}
	rewrite := flags.Bool("rewrite", false, "write the results into the files")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return statusUnreadable
	}
	if flags.NArg() == 0 {
		flags.Usage()
		return statusUnreadable
	}
	passed, failed, status := 0, 0, 0
	for _, path := range flags.Args() {
		files, err := expand(path)
		if err != nil {
			fmt.Fprintln(stderr, err)
			failed, status = failed+1, statusUnreadable
		}
		for _, file := range files {
			differences, err := runFile(file, *rewrite)
			switch {
			case err != nil:
				fmt.Fprintln(stderr, err)
				failed, status = failed+1, statusUnreadable
			case len(differences) > 0:
				for _, d := range differences {
					fmt.Fprintf(stdout, "%s: %v", file, d)
				}
				failed, status = failed+1, max(status, statusFailed)
			default:
				passed++
			}
		}
	}
	fmt.Fprintf(stdout, "%d passed, %d failed\n", passed, failed)
	return status
}

// expand lists the files that a path stands for, in lexical order.
func expand(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	var files []string
	err = filepath.WalkDir(path, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !entry.IsDir() && filepath.Ext(file) == ".case" && !strings.HasPrefix(entry.Name(), ".") {
			files = append(files, file)
		}
		return nil
	})
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("%s: no file *.case in it", path)
	}
	return files, err
}

// runFile runs a file and returns its differences, none after they were written into it.
func runFile(file string, rewrite bool) ([]cases.Difference, error) {
	data, err := read(file)
	if err != nil {
		return nil, err
	}
	f, err := cases.Parse(data)
	if err != nil {
		return nil, locate(file, err)
	}
	result := f.Run()
	if !rewrite {
		return result.Differences, nil
	}
	if next := f.Rewrite(result); len(result.Differences) > 0 && !bytes.Equal(next, data) {
		return nil, os.WriteFile(file, next, 0o644)
	}
	return nil, nil
}

// read reads a file, and no more than a byte too much of one that is too long.
func read(file string) ([]byte, error) {
	in, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	data, err := io.ReadAll(io.LimitReader(in, cases.MaxFile+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return data, nil
}

// locate puts the file and the line before what is wrong, as compilers do.
func locate(file string, err error) error {
	var syntax *cases.SyntaxError
	if errors.As(err, &syntax) {
		return fmt.Errorf("%s:%d: %s", file, syntax.Line, syntax.Text)
	}
	return fmt.Errorf("%s: %w", file, err)
}
