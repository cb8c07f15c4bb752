// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/lab/traffic"
)

// startTrafficServer runs `traffic server` until the test ends and returns its address.
func startTrafficServer(t *testing.T) string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r, w := io.Pipe()
	cmd := newTrafficCmd()
	cmd.SetArgs([]string{"server", "--listen", "127.0.0.1:0"})
	cmd.SetOut(w)
	done := make(chan error, 1)
	go func() { done <- cmd.ExecuteContext(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(strings.TrimPrefix(line, "listening on "))
}

func runTraffic(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := newTrafficCmd()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestTrafficClientMeasuresAgainstServer(t *testing.T) {
	addr := startTrafficServer(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--kind", "tcp", "--streams", "2"}, "tcp: "},
		{[]string{"--kind", "udp", "--rate", "10M", "--train", "8"}, " 0 reordered, 0 duplicated, 0 corrupt"},
		{[]string{"--kind", "ping", "--size", "64"}, " replies to "},
	} {
		out, err := runTraffic(t, append([]string{"client", "--seconds", "0.1", addr}, c.args...)...)
		if err != nil || !strings.Contains(out, c.want) {
			t.Errorf("%v: got %q, error %v, want %q in it, no error", c.args, out, err, c.want)
		}
	}
}

func TestTrafficClientPrintsJSON(t *testing.T) {
	out, err := runTraffic(t, "client", "--json", "--seconds", "0.1", startTrafficServer(t))
	if err != nil {
		t.Fatal(err)
	}
	var r traffic.Result
	if err := json.Unmarshal([]byte(out), &r); err != nil || r.Kind != traffic.TCP || r.Bytes == 0 {
		t.Errorf("%v in %s", err, out)
	}
}

func TestTrafficRejectsInvalidFlags(t *testing.T) {
	for _, args := range [][]string{
		{"server", "--listen", "nowhere"},
		{"client", "nowhere"},
		{"client", "--seconds", "0", "127.0.0.1:1"},
		{"client", "--rate", "fast", "127.0.0.1:1"},
		{"client"},
	} {
		var usage usageError
		if _, err := runTraffic(t, args...); !errors.As(err, &usage) {
			t.Errorf("%v: got error %v", args, err)
		}
	}
}

func TestParseRateAcceptsUnits(t *testing.T) {
	for in, want := range map[string]float64{"0": 0, "1500": 1500, "10k": 1e4, "2.5M": 2.5e6, "2G": 2e9} {
		if got, err := parseRate(in); err != nil || math.Abs(got-want) > 1e-6 {
			t.Errorf("%q: got %v, error %v, want no error", in, got, err)
		}
	}
	for _, in := range []string{"", "G", "-1", "NaN", "Inf", "1T", "1e30"} {
		if got, err := parseRate(in); err == nil {
			t.Errorf("%q gave %v", in, got)
		}
	}
}
