// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/test/bench/measure"
)

func TestUnknownNamesListValidPeersAndTests(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want []string
	}{
		{[]string{"--peers", "boringtun,wireguard"}, []string{`unknown peer "wireguard"`, "wireguard-go", "tailscale", "boringtun", "gotatun", "raw"}},
		{[]string{"--tests", "tcp2"}, append([]string{`unknown test "tcp2"`}, measureNames(measure.Measures())...)},
	} {
		err := run(context.Background(), tt.args, io.Discard, io.Discard)
		if err == nil {
			t.Fatalf("%q is accepted", tt.args)
		}
		for _, w := range tt.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%q: the error does not say %q: %v", tt.args, w, err)
			}
		}
	}
}

func TestChosenPeersKeepTheOrderOfTheList(t *testing.T) {
	for _, tt := range []struct {
		names string
		want  []string
		raw   bool
	}{
		{"", []string{"wireguard-go", "tailscale", "boringtun", "gotatun"}, true},
		{"gotatun,raw,tailscale", []string{"tailscale", "gotatun"}, true},
		{"boringtun", []string{"boringtun"}, false},
		{"raw", nil, true},
	} {
		chosen, raw, err := choosePeers(peers(), splitNames(tt.names))
		if err != nil || raw != tt.raw {
			t.Errorf("%q: raw %t, %v", tt.names, raw, err)
		}
		if d := cmp.Diff(tt.want, peerNames(chosen)); d != "" {
			t.Errorf("%q: -want +got:\n%s", tt.names, d)
		}
	}
}

func TestChosenMeasuresKeepTheirOrder(t *testing.T) {
	chosen, err := chooseMeasures(measure.Measures(), measure.Trials(), []string{"rss", "tcp1"})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"tcp1", "rss"}, measureNames(chosen)); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

// A test that bench no longer has, or calls otherwise, would silently lose its lines in the table.
func TestEveryCompanionFigureHasAMeasure(t *testing.T) {
	all := slices.Concat(measure.Measures(), measure.Special())
	names := strings.Join(measureNames(all), " ")
	for _, c := range companions() {
		if !regexp.MustCompile(`\b` + c.test + `\b`).MatchString(names) {
			t.Errorf("%s: no such measure among %s", c.test, names)
		}
	}
	if got := len(rows(all)); got != len(all)+len(companions()) {
		t.Errorf("%d rows", got)
	}
}

func TestWireguardGoVersionMatchesGoMod(t *testing.T) {
	mod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	p := peers()[0]
	if want := "\t" + p.source.goPackage + " " + p.version + "\n"; !bytes.Contains(mod, []byte(want)) {
		t.Errorf("go.mod does not have %q", want)
	}
}
