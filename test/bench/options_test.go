// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"strings"
	"testing"
	"time"
)

func TestDefaultSelectsAllPeersAndTests(t *testing.T) {
	o, err := parseOptions(nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if len(o.peers) != len(peers()) || !o.raw || len(o.measures) == 0 || o.rounds < 3 || o.stretch < time.Second {
		t.Errorf("got %d peers, raw %t, %d measures, %d rounds of %s", len(o.peers), o.raw, len(o.measures), o.rounds, o.stretch)
	}
}

func TestInvalidArgumentsAreErrors(t *testing.T) {
	for _, args := range []string{
		"--rounds 0", "--seconds 0", "--seconds -1", "--seconds NaN", "--seconds 1e9", "--queues 0", "more", "--rounds x", "--what",
		"--other x", "--other =x", "--other x=", "--other tailscale=x", "--other raw=x", "--other ropewalk=x", "--other a,b=x",
		"--other a=x --other a=y", "--more",
	} {
		if _, err := parseOptions(strings.Fields(args), io.Discard); err == nil {
			t.Errorf("%q is accepted", args)
		}
	}
}

func TestHelpListsPeersAndTests(t *testing.T) {
	var out bytes.Buffer
	if _, err := parseOptions([]string{"--help"}, &out); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("got %v", err)
	}
	for _, want := range []string{"gotatun", "raw", "tcp16", "rss", "wan20", defaultTable} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the help does not say %q:\n%s", want, &out)
		}
	}
}

func TestCommandLineIsQuotedForShell(t *testing.T) {
	got := commandLine([]string{"--rounds", "3", "--tests", "tcp1 rtt_idle", "--json", "it's.json", ""})
	if want := `go run ./test/bench --rounds 3 --tests 'tcp1 rtt_idle' --json 'it'\''s.json' ''`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestCustomProgramReplacesOrJoinsPeers(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--other", "before=/tmp/x run --lanes 2"}, "before"},
		{[]string{"--other", "a=x", "--other", "b=y"}, "a b"},
		{[]string{"--other", "a=x", "--peers", "tailscale"}, "tailscale a"},
	} {
		o, err := parseOptions(tt.args, io.Discard)
		if got := strings.Join(peerNames(o.peers), " "); err != nil || got != tt.want || o.raw {
			t.Errorf("%q: got %s, raw %t (%v), want %s", tt.args, got, o.raw, err, tt.want)
		}
	}
	o, _ := parseOptions([]string{"--other", "before=/tmp/x run --lanes 2"}, io.Discard)
	if got := strings.Join(o.peers[0].argv("anywhere"), "|"); got != "/tmp/x|run|--lanes|2" {
		t.Errorf("it is started by %s", got)
	}
}
