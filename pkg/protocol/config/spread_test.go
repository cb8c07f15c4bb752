// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

func TestSpreadModesHaveNamesInAnyCase(t *testing.T) {
	var zero SpreadMode
	if zero != SpreadAuto {
		t.Error("the zero mode is", zero)
	}
	for name, want := range map[string]SpreadMode{"auto": SpreadAuto, "off": SpreadOff, "on": SpreadOn} {
		for _, text := range []string{name, strings.ToUpper(name)} {
			got, err := ParseSpreadMode(text)
			if got != want || err != nil || got.String() != name {
				t.Errorf("%q: got %v, error %v, want %v, no error", text, got, err, want)
			}
		}
	}
	for _, text := range []string{"", "unknown", "true", "on "} {
		if got, err := ParseSpreadMode(text); err == nil {
			t.Errorf("%q: got %v", text, got)
		}
	}
	if got := SpreadMode(3).String(); got != "unknown" {
		t.Error(got)
	}
}

func TestUnusablePortRangesAreRejected(t *testing.T) {
	const syntax = "want two ports, such as 61000-61999"
	for in, want := range map[string]string{
		"": syntax, "61000": syntax, "-": syntax, "61000-": syntax, "-61000": syntax, "a-b": syntax, "1-2-3": syntax,
		"61000-65536": syntax, "61000 - 61001": syntax, "+61000-61001": syntax, "0x10-0x20": syntax,
		"61001-61000": "range 61001-61000 ends before it begins",
		"0-0":         "range 0-0 is empty",
		"0-2000":      "range 0-2000 is empty",
		"1023-2000":   "range 1023-2000 has privileged ports, below 1024, in it",
	} {
		_, err := ParsePorts(in)
		if err == nil || err.Error() != want || !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%q: got %v, want %s", in, err, want)
		}
	}
}

func TestPortsRoundTrip(t *testing.T) {
	for _, want := range []spread.Ports{spread.DefaultPorts, {First: 1024, Last: 1024}, {First: 1024, Last: 65535}} {
		if got, err := ParsePorts(want.String()); got != want || err != nil {
			t.Errorf("%v: got %v, error %v, want %v, no error", want, got, err, want)
		}
	}
}

func TestRangeWithListenPortIsRejected(t *testing.T) {
	p := spread.Ports{First: 2000, Last: 3000}
	for listen, ok := range map[uint16]bool{0: true, 1999: true, 2000: false, 2500: false, 3000: false, 3001: true} {
		if err := CheckPorts(p, listen); (err == nil) != ok {
			t.Errorf("listening on %d: %v", listen, err)
		}
	}
}

func TestAddSpreadStoresReport(t *testing.T) {
	st := Status{
		Name: "wg0", Spread: SpreadOn, SpreadPorts: spread.Ports{First: 2000, Last: 3000}, Spray: 4, Lanes: 4,
		PrivateKey: noise.PrivateKey{5},
		Peers: []PeerStatus{
			{PublicKey: noise.PublicKey{1}, Spread: PeerSpread{Active: true, Ports: 16, Gathers: true, Sprays: 4}},
			{PublicKey: noise.PublicKey{2}, Spread: PeerSpread{Reason: "it has not said that it gathers"}},
		},
	}
	text := `{"mode":"on","first_port":2000,"last_port":3000,"spray":"4","lanes":4,"peers":{` +
		`"AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=":{"active":true,"ports":16,"planned":false,"gathers":true,"sprays":4},` +
		`"AgAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=":{"active":false,"ports":0,"planned":false,"gathers":false,` +
		`"reason":"it has not said that it gathers"}}}`
	var r SpreadReport
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		t.Fatal(err)
	}
	bare := Status{
		Name: "wg0", PrivateKey: st.PrivateKey,
		Peers: []PeerStatus{{PublicKey: noise.PublicKey{1}}, {PublicKey: noise.PublicKey{2}}, {PublicKey: noise.PublicKey{3}}},
	}
	bare.AddSpread(r)
	st.Peers = append(st.Peers, PeerStatus{PublicKey: noise.PublicKey{3}})
	if diff := cmp.Diff(st, bare, cmp.Comparer(func(a, b Endpoint) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}

func TestMalformedSpreadReportIsIgnored(t *testing.T) {
	st := Status{Peers: []PeerStatus{{PublicKey: noise.PublicKey{1}}}}
	st.AddSpread(SpreadReport{Peers: map[string]PeerSpread{"no key": {Active: true}}})
	if st.Peers[0].Spread.Active {
		t.Error("a peer spreads that was not named")
	}
	var r SpreadReport
	if err := json.Unmarshal([]byte(`{"mode":"sometimes"}`), &r); err == nil {
		t.Errorf("accepted %+v", r)
	}
}
