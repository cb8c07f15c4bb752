// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"runtime"
	"strings"
	"time"

	"github.com/ropewalk/ropewalk/test/bench/measure"
)

const maxSeconds = 3600

// options are the options of the command line.
type options struct {
	peers      []peer
	raw        bool
	measures   []measure.Measure
	rounds     int
	stretch    time.Duration
	queues     int
	ropewalk   string // the program's path
	quic       string // the path of the program that makes QUIC traffic, which need not exist
	installDir string // the directory of the peers
	json       string // file for the report, or none
	more       bool   // continue the file
	update     string // document for the table, or none
	table      string // the table's name in it
}

// parseOptions reads the command line without the program's name. Its errors, flag.ErrHelp apart, are the user's to see.
func parseOptions(args []string, out io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(out)
	names, tests := f.String("peers", "", "comma-separated: "+strings.Join(append(peerNames(peers()), rawName), ", ")+" (default all)"),
		f.String("tests", "", "comma-separated: "+strings.Join(measureNames(measure.Measures()), ", ")+" (default all those); "+
			"only when named: "+strings.Join(measureNames(measure.Special()), ", "))
	var others []peer
	f.Func("other", "another program as NAME=COMMAND, to be named instead of or beside --peers; may be repeated", func(s string) error {
		p, err := otherPeer(s, others)
		others = append(others, p)
		return err
	})
	f.IntVar(&o.rounds, "rounds", 5, "how often everything is measured")
	seconds := f.Float64("seconds", 3, "seconds of traffic in each test")
	f.IntVar(&o.queues, "queues", runtime.NumCPU(), "queues of the cable")
	f.StringVar(&o.ropewalk, "ropewalk", "bin/ropewalk", "the ropewalk that is compared, and makes the traffic")
	f.StringVar(&o.quic, "quic", "bin/bench-quic", "the program that makes QUIC traffic, test/bench/quic")
	f.StringVar(&o.installDir, "install", "build/peers", "directory in which the peers are installed")
	f.StringVar(&o.json, "json", "", "file for every figure of every round")
	f.BoolVar(&o.more, "more", false, "add to the rounds that the --json file has of the same tests and programs")
	f.StringVar(&o.update, "update", "", "document whose table is replaced")
	f.StringVar(&o.table, "table", defaultTable, "name of the table in that document: it stands between the lines <!-- NAME:begin --> and <!-- NAME:end -->")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if o.rounds < 1 || !(*seconds > 0 && *seconds <= maxSeconds) || o.queues < 1 {
		return o, fmt.Errorf("--rounds, --queues: want at least 1; --seconds: want up to %d", maxSeconds)
	}
	if o.more && o.json == "" {
		return o, errors.New("--more: want --json too")
	}
	o.stretch = time.Duration(math.Ceil(*seconds * float64(time.Second)))
	return o, o.choose(*names, others, *tests)
}

// choose picks peers and measures; no names mean all, and no peers at all if there are others.
func (o *options) choose(names string, others []peer, tests string) error {
	var err, err2 error
	if names != "" || len(others) == 0 {
		o.peers, o.raw, err = choosePeers(peers(), splitNames(names))
	}
	o.peers = append(o.peers, others...)
	o.measures, err2 = chooseMeasures(measure.Measures(), measure.Special(), splitNames(tests))
	return errors.Join(err, err2)
}

// splitNames splits at commas and blanks.
func splitNames(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}

// commandLine is how to run the same again, from the repository's root.
func commandLine(args []string) string {
	words := []string{"go", "run", "./test/bench"}
	for _, a := range args {
		if a == "" || strings.ContainsAny(a, " \t\n'\"\\$`*?[]{}()<>|&;~#!") {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		words = append(words, a)
	}
	return strings.Join(words, " ")
}
