// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

func TestCheckNameRefusesWhatCannotBePrinted(t *testing.T) {
	for name, valid := range map[string]bool{
		"": true, "laptop": true, "Anna's phone (2)": true, "Zürich": true, strings.Repeat("x", MaxNameLen): true,
		strings.Repeat("x", MaxNameLen+1): false, "a\nb": false, "a\x1b[31m": false, "\xff": false, " a": false, "a\u202e": false,
	} {
		if err := CheckName(name); (err == nil) != valid {
			t.Errorf("%q: got error %v, want valid %v", name, err, valid)
		}
	}
}

func TestCheckEndpointNameWantsNameAndPort(t *testing.T) {
	for name, valid := range map[string]bool{
		"": true, "vpn.example.org:51820": true, "host:1": true,
		"host": false, "host:": false, ":1": false, "host:0": false, "host:65536": false, "a b:1": false, "a\n:1": false, "[::1]:1": false,
		strings.Repeat("x", 256) + ":1": false,
	} {
		if err := CheckEndpointName(name); (err == nil) != valid {
			t.Errorf("%q: got error %v, want valid %v", name, err, valid)
		}
	}
}

func TestAddNamesOmitsWhatCannotBePrinted(t *testing.T) {
	var a, b noise.PublicKey
	b[0] = 1
	st := Status{Peers: []PeerStatus{{PublicKey: a}, {PublicKey: b}}}
	st.AddNames(NameReport{
		a.Base64(): {Name: "x\n[Interface]\nPostUp = reboot", EndpointName: "host:1\nPostUp = reboot"},
		b.Base64(): {Name: "laptop", EndpointName: "host:1"},
	})
	if p := st.Peers[0]; p.Name != "" || p.EndpointName != "" {
		t.Errorf("got names %q and %q, want none", p.Name, p.EndpointName)
	}
	if p := st.Peers[1]; p.Name != "laptop" || p.EndpointName != "host:1" {
		t.Errorf("got names %q and %q, want laptop and host:1", p.Name, p.EndpointName)
	}
}
