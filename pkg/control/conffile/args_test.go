// SPDX-License-Identifier: Apache-2.0

package conffile

import (
	"context"
	"errors"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

func TestSignsModifyAllowedIPs(t *testing.T) {
	key := publicKey.Base64()
	a, b := netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/64")
	for value, want := range map[string]config.Peer{
		"+10.0.0.0/8,-fd00::/64": {AllowedIPs: []config.AllowedIP{{Prefix: a}, {Prefix: b, Remove: true}}},
		"-10.0.0.0/8":            {AllowedIPs: []config.AllowedIP{{Prefix: a, Remove: true}}},
		"10.0.0.0/8":             {AllowedIPs: []config.AllowedIP{{Prefix: a}}, ReplaceAllowedIPs: true},
		"":                       {ReplaceAllowedIPs: true},
	} {
		want.PublicKey = publicKey
		dev, _, err := ParseArgs(t.Context(), []string{"peer", key, "allowed-ips", value}, NewResolver(ResolverConfig{}))
		if diff := cmp.Diff([]config.Peer{want}, dev.Peers, exact); diff != "" || err != nil {
			t.Errorf("%q: %v %s", value, err, diff)
		}
	}
}

func TestSyncRemovesPresharedKeysMissingFromFile(t *testing.T) {
	f, err := Parse("", strings.NewReader("[Peer]\nPublicKey = "+publicKey.Base64()+"\n"), WG)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		now  config.PeerStatus
		want []config.Peer
	}{
		{config.PeerStatus{PublicKey: publicKey, PresharedKey: psk}, []config.Peer{{PublicKey: publicKey, PresharedKey: new(noise.PresharedKey), ReplaceAllowedIPs: true}}},
		{config.PeerStatus{PublicKey: publicKey}, []config.Peer{{PublicKey: publicKey, ReplaceAllowedIPs: true}}},
		{config.PeerStatus{PublicKey: noise.PublicKey{9}}, []config.Peer{{PublicKey: noise.PublicKey{9}, Remove: true}, {PublicKey: publicKey, ReplaceAllowedIPs: true}}},
	} {
		dev, err := f.Sync(t.Context(), NewResolver(ResolverConfig{}), []config.PeerStatus{tc.now})
		if diff := cmp.Diff(tc.want, dev.Peers, exact); diff != "" || err != nil || dev.ReplacePeers {
			t.Errorf("%v, %v %s", dev.ReplacePeers, err, diff)
		}
	}
}

func TestLastAllowedIPsListDecidesReplaceOrModify(t *testing.T) {
	for text, want := range map[string]bool{"+10.0.0.0/8": false, "+10.0.0.0/8\nAllowedIPs = 10.1.0.0/16": true, "10.1.0.0/16\nAllowedIPs = -10.0.0.0/8": false} {
		f, err := Parse("", strings.NewReader("[Peer]\nPublicKey = "+publicKey.Base64()+"\nAllowedIPs = "+text+"\n"), WG)
		if err != nil {
			t.Fatal(err)
		}
		dev, err := f.Additions(t.Context(), NewResolver(ResolverConfig{}))
		if err != nil || dev.Peers[0].ReplaceAllowedIPs != want {
			t.Errorf("file, %q: %v", text, err)
		}
		words := []string{"peer", publicKey.Base64()}
		for line := range strings.SplitSeq(text, "\nAllowedIPs = ") {
			words = append(words, "allowed-ips", line)
		}
		dev, _, err = ParseArgs(t.Context(), words, NewResolver(ResolverConfig{}))
		if err != nil || dev.Peers[0].ReplaceAllowedIPs != want {
			t.Errorf("words, %q: %v", text, err)
		}
	}
}

func TestSetAcceptsRopewalkKeywords(t *testing.T) {
	words := []string{"spread", "off", "spread-ports", "2000-3000", "underlay", "udp"}
	dev, _, err := ParseArgs(t.Context(), words, NewResolver(ResolverConfig{}))
	want := config.Device{
		Settings: config.Settings{Spread: new(config.SpreadOff), SpreadPorts: &spread.Ports{First: 2000, Last: 3000}, Underlay: new(config.UnderlayUDP)},
	}
	if diff := cmp.Diff(want, dev, exact); diff != "" || err != nil {
		t.Error(err, diff)
	}
}

func TestSetErrorsNameKeywordAndMistake(t *testing.T) {
	key, secret := publicKey.Base64(), privateKey.Base64()
	absent := filepath.Join(t.TempDir(), "absent")
	for _, tc := range []struct {
		words []string
		want  string
	}{
		{[]string{"per"}, `invalid argument "per"`},
		{[]string{secret}, "invalid argument"},
		{[]string{"listen-port", "65536"}, `listen-port: want 0-65535 or a UDP service, got "65536"`},
		{[]string{"listen-port"}, "listen-port: missing value"},
		{[]string{"remove"}, "remove: must follow a peer"},
		{[]string{"peer", key, "fwmark", "1"}, "fwmark: must precede the first peer"},
		{[]string{"peer", "x"}, `peer: want a base64 key of 44 characters, got "x"`},
		{[]string{"private-key", absent}, "private-key: want a file with one base64 key, or an empty one for none; \"" + absent + "\": no such file or directory"},
		{[]string{"private-key", secret}, "private-key: want the name of a file with the key, because arguments are visible in process lists; got a key"},
		{[]string{"underlay", "tcp"}, `underlay: want "auto", "udp" or "xdp", got "tcp"`},
		{[]string{"peer", key, "post-quantum", "on"}, `post-quantum: want "forget", "auto", "off", "required" or "default", got "on"`},
		{[]string{"spread", "often"}, `spread: want "auto", "off" or "on", got "often"`},
	} {
		_, _, err := ParseArgs(t.Context(), tc.words, NewResolver(ResolverConfig{}))
		if _, ok := errors.AsType[*ArgError](err); !ok || err.Error() != tc.want {
			t.Errorf("%q: got %v, want %s", tc.words, err, tc.want)
		}
	}
}

func TestPostQuantumOfAPeerCanBeForgotten(t *testing.T) {
	words := []string{"peer", "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=", "post-quantum", ""}
	for _, words[3] = range []string{"forget", "Forget"} { // in any case, as policies
		dev, _, err := ParseArgs(t.Context(), words, nil)
		if err != nil || !dev.Peers[0].ForgetPostQuantum || dev.Peers[0].PostQuantum != nil {
			t.Errorf("got %+v, %v", dev.Peers, err)
		}
	}
	if _, _, err := ParseArgs(t.Context(), words[2:], nil); err == nil {
		t.Error("the interface has nothing to forget, and there is no error")
	}
}

func TestPostQuantumIsAKeywordOfBothSections(t *testing.T) {
	key := noise.PrivateKey{1}.Public()
	dev, _, err := ParseArgs(t.Context(), []string{"post-quantum", "auto", "peer", key.Base64(), "post-quantum", "required"}, NewResolver(ResolverConfig{}))
	if err != nil {
		t.Fatal(err)
	}
	if dev.PostQuantum == nil || *dev.PostQuantum != config.PostQuantumAuto || dev.Peers[0].PostQuantum == nil || *dev.Peers[0].PostQuantum != config.PostQuantumRequired {
		t.Errorf("got %v for the device and %v for the peer, want auto and required", dev.PostQuantum, dev.Peers[0].PostQuantum)
	}
}

func TestKeywordsAreThoseOfTheirSection(t *testing.T) {
	if diff := cmp.Diff([]string{"listen-port", "fwmark", "private-key", "spread", "spread-ports", "spray", "underlay", "outer-fragments", "post-quantum", "peer"}, Keywords(false)); diff != "" {
		t.Error(diff)
	}
	want := []string{"peer", "remove", "preshared-key", "endpoint", "persistent-keepalive", "allowed-ips", "name", "post-quantum"}
	if diff := cmp.Diff(want, Keywords(true)); diff != "" {
		t.Error(diff)
	}
	if TakesValue("remove") || TakesValue("nonsense") || !TakesValue("peer") {
		t.Error("TakesValue is wrong for remove, nonsense or peer")
	}
}

func FuzzSetWords(f *testing.F) {
	f.Add("peer " + publicKey.Base64() + " allowed-ips +10.0.0.0/8,-::/0 endpoint [::1]:5 remove")
	f.Add("listen-port 5 fwmark off spread on spread-ports 2000-3000 underlay udp")
	f.Add("peer x")
	resolve := NewResolver(ResolverConfig{IP: func(context.Context, string) ([]netip.Addr, error) { return nil, errors.New("no names here") }})
	f.Fuzz(func(t *testing.T, line string) {
		if strings.Contains(line, "-key") { // would read files of any name
			t.Skip()
		}
		dev, _, err := ParseArgs(t.Context(), strings.Fields(line), resolve)
		if err != nil && (dev.Peers != nil || dev.ListenPort != nil) {
			t.Error("ParseArgs returns both a change and an error")
		}
	})
}
