// SPDX-License-Identifier: Apache-2.0

// Command scale predicts the throughput of ropewalk on more cores than the machine has. It
// measures the costs that the model in test/scale/model needs, and compares the model with runs on
// two cores. It draws the charts of docs/dev/model.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

const usage = `usage: scale costs   [-rounds N] [-o FILE]             measure the cost of each stage on this machine (root)
       scale check   [-rounds N] [-o FILE] [-ropewalk PATH]  measure ropewalk on two cores, to compare with the model (root)
       scale figures [-costs FILE] [-check FILE] [-docs DIR]  simulate, draw DIR/plots/scale-*.svg, update the tables of DIR/model.md
       scale predict [-costs FILE] [-check FILE] -o FILE      simulate machines that nobody has measured
       scale results [-docs DIR]                              check the results in DIR/results, draw them beside the predictions`

var errUsage = errors.New(usage)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errUsage
	}
	switch command, rest := args[0], args[1:]; command {
	case "costs":
		return costsMain(ctx, rest)
	case "check":
		return checkMain(ctx, rest)
	case "figures":
		return figuresMain(rest)
	case "predict":
		return predictMain(rest)
	case "results":
		return resultsMain(rest)
	case "sink", "source": // the applications that runApps starts
		return appMain(command, rest)
	}
	return errUsage
}

func costsMain(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("scale costs", flag.ContinueOnError)
	rounds := flags.Int("rounds", 5, "bulk transfers over each kind of cable")
	out := flags.String("o", "test/scale/costs.json", "file to write")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if err := requireTwoCores(); err != nil {
		return err
	}
	f, err := measureCosts(ctx, *rounds, os.Stderr)
	if err != nil {
		return fmt.Errorf("measuring costs: %w", err)
	}
	return writeJSON(*out, f)
}

func checkMain(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("scale check", flag.ContinueOnError)
	rounds := flags.Int("rounds", 7, "rounds of all scenarios")
	out := flags.String("o", "test/scale/check.json", "file to write")
	ropewalk := flags.String("ropewalk", "bin/ropewalk", "the program to run")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if err := requireTwoCores(); err != nil {
		return err
	}
	f, err := check(ctx, *ropewalk, *rounds, os.Stderr)
	if err != nil {
		return fmt.Errorf("checking: %w", err)
	}
	return writeJSON(*out, f)
}

func figuresMain(args []string) error {
	flags := flag.NewFlagSet("scale figures", flag.ContinueOnError)
	costs := flags.String("costs", "test/scale/costs.json", "file that scale costs wrote")
	checked := flags.String("check", "test/scale/check.json", "file that scale check wrote")
	docs := flags.String("docs", "docs/dev", "directory of plots and of model.md")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var f figures
	if err := errors.Join(readJSON(*costs, &f.costs), readJSON(*checked, &f.check)); err != nil {
		return err
	}
	return f.write(*docs, os.Stderr)
}

func predictMain(args []string) error {
	flags := flag.NewFlagSet("scale predict", flag.ContinueOnError)
	costs := flags.String("costs", "test/scale/costs.json", "file that scale costs wrote")
	checked := flags.String("check", "test/scale/check.json", "file that scale check wrote")
	out := flags.String("o", "", "file to write")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *out == "" {
		return errUsage
	}
	var f figures
	if err := errors.Join(readJSON(*costs, &f.costs), readJSON(*checked, &f.check)); err != nil {
		return err
	}
	p, err := predict(&f.costs, &f.check, targets(), os.Stderr)
	if err != nil {
		return fmt.Errorf("predicting: %w", err)
	}
	return writeJSON(*out, p)
}

func resultsMain(args []string) error {
	flags := flag.NewFlagSet("scale results", flag.ContinueOnError)
	docs := flags.String("docs", "docs", "directory of results and dev/predictions.md")
	if err := flags.Parse(args); err != nil {
		return err
	}
	return writeResults(*docs)
}

func appMain(command string, args []string) error {
	if len(args) < 2 {
		return errUsage
	}
	streams, err := strconv.Atoi(args[1])
	if err != nil {
		return errUsage
	}
	if command == "sink" {
		return sink(args[0], streams, os.Stdout)
	}
	d := time.Second
	if len(args) > 2 {
		if d, err = time.ParseDuration(args[2]); err != nil {
			return errUsage
		}
	}
	return source(args[0], streams, d)
}
