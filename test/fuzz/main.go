// SPDX-License-Identifier: Apache-2.0

// Command fuzz runs all fuzz targets of the repository in turn, and keeps their corpora.
//
// Time is shared by weight (weights.go): the target with the least time for its weight gets the next slice. The program begins with the
// corpora in corpus/, one archive of bounded size per target, and with the working corpora of earlier runs in build/fuzz. At the end it
// updates the archives with the inputs that add coverage, and prints a table of all runs since build/fuzz was removed. An input that
// makes a target fail is written to testdata/fuzz beside the target, where go test runs it from then on, and the exit status is 1.
//
// Start reading at run in runner.go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, cancel) // a second interrupt ends the program at once
	err := command(ctx, os.Args[1:], os.Stdout, os.Stderr)
	cancel()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "fuzz: %v\n", err)
		os.Exit(1)
	}
}

// options are the command line.
type options struct {
	hours float64
	slice time.Duration
	once  string
	only  *regexp.Regexp
	exec  []string // the command line in front of each test binary
	work  string   // directory of binaries, working corpora and totals
}

func command(ctx context.Context, args []string, out, diag io.Writer) error {
	o, err := parseOptions(args, diag)
	if err != nil {
		return err
	}
	targets, err := discover(".", o.only)
	if err != nil {
		return err
	}
	if o.once != "" {
		return once(ctx, o, targets, diag)
	}
	r, err := newRunner(o, targets, diag)
	if err != nil {
		return err
	}
	return r.run(ctx, out)
}

func parseOptions(args []string, diag io.Writer) (options, error) {
	o := options{work: "build/fuzz"}
	f := flag.NewFlagSet("fuzz", flag.ContinueOnError)
	f.SetOutput(diag)
	f.Float64Var(&o.hours, "hours", 0, "hours to fuzz; 0 only updates the archives and prints the table")
	f.DurationVar(&o.slice, "slice", time.Minute, "longest time of one target at a time")
	f.StringVar(&o.once, "once", "", "run each target with reproducible results once, for a duration or a count such as 1000x, and keep nothing")
	only := f.String("only", "", "regular expression of targets, such as pkg/protocol/.*/FuzzParse")
	prefix := f.String("exec", "", "command line in front of each test binary, such as 'chrt -i 0'")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 || o.hours < 0 || o.slice < time.Second || o.once != "" && o.hours != 0 {
		return o, errors.New("reading the command line: no arguments, no negative -hours, a -slice of 1s or more, and -hours or -once")
	}
	re, err := regexp.Compile(*only)
	if err != nil {
		return o, fmt.Errorf("reading -only: %w", err)
	}
	o.only, o.exec = re, strings.Fields(*prefix)
	return o, nil
}
