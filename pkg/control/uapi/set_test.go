// SPDX-License-Identifier: Apache-2.0

package uapi

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// exact compares types whose fields go-cmp cannot read.
var exact = cmp.Options{
	cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

var (
	hexA = strings.Repeat("a1", 32)
	hexB = strings.Repeat("b2", 32)
	hex0 = strings.Repeat("00", 32)
)

func mustHex[K noise.Key](t testing.TB, s string) K {
	t.Helper()
	k, err := noise.ParseHex[K](s)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestParseSetUnderstandsEveryKey(t *testing.T) {
	got, err := ParseSet(strings.NewReader("private_key=" + hexA + "\nlisten_port=51820\nfwmark=4294967295\nspread=off\nspread_ports=2000-3000\nunderlay=udp\nreplace_peers=true\n" +
		"public_key=" + hexB + "\nupdate_only=true\nprotocol_version=1\npreshared_key=" + hexA + "\nendpoint=[fe80::1%3]:7\n" +
		"persistent_keepalive_interval=25\nreplace_allowed_ips=true\nallowed_ip=10.0.0.1/24\nallowed_ip=-fd00::1/64\n" +
		"public_key=" + hexA + "\nremove=true\nendpoint=192.0.2.1:9\n\nignored"))
	if err != nil {
		t.Fatal(err)
	}
	priv, psk := mustHex[noise.PrivateKey](t, hexA), mustHex[noise.PresharedKey](t, hexA)
	want := config.Device{
		PrivateKey: &priv, ListenPort: new(uint16(51820)), FwMark: new(uint32(1<<32 - 1)), ReplacePeers: true,
		Settings: config.Settings{Spread: new(config.SpreadOff), SpreadPorts: &spread.Ports{First: 2000, Last: 3000}, Underlay: new(config.UnderlayUDP)},
		Peers: []config.Peer{{
			PublicKey: mustHex[noise.PublicKey](t, hexB), UpdateOnly: true, PresharedKey: &psk,
			Endpoint:  &config.Endpoint{AddrPort: netip.MustParseAddrPort("[fe80::1]:7"), Scope: 3},
			Keepalive: new(uint16(25)), ReplaceAllowedIPs: true,
			AllowedIPs: []config.AllowedIP{
				{Prefix: netip.MustParsePrefix("10.0.0.0/24")},
				{Prefix: netip.MustParsePrefix("fd00::/64"), Remove: true},
			},
		}, {
			PublicKey: mustHex[noise.PublicKey](t, hexA), Remove: true,
			Endpoint: &config.Endpoint{AddrPort: netip.MustParseAddrPort("192.0.2.1:9")},
		}},
	}
	if diff := cmp.Diff(want, got, exact); diff != "" {
		t.Error(diff)
	}
}

func TestParseSetAppliesLinesInOrder(t *testing.T) {
	dev, err := ParseSet(strings.NewReader("listen_port=1\nlisten_port=2\npublic_key=" + hexA +
		"\nallowed_ip=10.0.0.0/8\nreplace_allowed_ips=true\nallowed_ip=10.1.0.0/16\n"))
	if err != nil {
		t.Fatal(err)
	}
	if *dev.ListenPort != 2 {
		t.Error("the first of two listen_port lines won")
	}
	if len(dev.Peers[0].AllowedIPs) != 1 {
		t.Error("replace_allowed_ips kept an allowed_ip from before it")
	}
}

func TestParseSetResolvesInterfaceNameAsZone(t *testing.T) {
	dev, err := ParseSet(strings.NewReader("public_key=" + hexA + "\nendpoint=[fe80::1%lo]:7\n"))
	if err != nil {
		t.Fatal(err)
	}
	if dev.Peers[0].Endpoint.Scope == 0 || dev.Peers[0].Endpoint.AddrPort.Addr().Zone() != "" {
		t.Errorf("endpoint is %+v", dev.Peers[0].Endpoint)
	}
}

func TestParseSetErrorsHaveLineAndKey(t *testing.T) {
	peer := "public_key=" + hexA + "\n"
	for _, tc := range []struct {
		in    string
		errno syscall.Errno
		line  int
		key   string
	}{
		{"nonsense\n", syscall.EPROTO, 1, ""},
		{"listen_port=65536\n", syscall.EINVAL, 1, "listen_port"},
		{"listen_port=-1\n", syscall.EINVAL, 1, "listen_port"},
		{"listen_port=\n", syscall.EINVAL, 1, "listen_port"},
		{"fwmark=0x10\n", syscall.EINVAL, 1, "fwmark"},
		{"fwmark=4294967296\n", syscall.EINVAL, 1, "fwmark"},
		{"spread=sometimes\n", syscall.EINVAL, 1, "spread"},
		{"spread=\n", syscall.EINVAL, 1, "spread"},
		{"spread_ports=61000\n", syscall.EINVAL, 1, "spread_ports"},
		{"spread_ports=80-90\n", syscall.EINVAL, 1, "spread_ports"},
		{peer + "spread=on\n", syscall.EINVAL, 2, "spread"},
		{"fwmark=1\nreplace_peers=false\n", syscall.EINVAL, 2, "replace_peers"},
		{"private_key=" + hexA[1:] + "\n", syscall.EINVAL, 1, "private_key"},
		{"private_key=" + hexA + "00\n", syscall.EINVAL, 1, "private_key"},
		{"public_key=x\n", syscall.EINVAL, 1, "public_key"},
		{"allowed_ip=10.0.0.0/8\n", syscall.EINVAL, 1, "allowed_ip"},
		{"errno=0\n", syscall.EINVAL, 1, "errno"},
		{peer + "listen_port=1\n", syscall.EINVAL, 2, "listen_port"},
		{peer + "remove=1\n", syscall.EINVAL, 2, "remove"},
		{peer + "update_only=false\n", syscall.EINVAL, 2, "update_only"},
		{peer + "preshared_key=zz\n", syscall.EINVAL, 2, "preshared_key"},
		{peer + "endpoint=example.com:1\n", syscall.EINVAL, 2, "endpoint"},
		{peer + "endpoint=192.0.2.1\n", syscall.EINVAL, 2, "endpoint"},
		{peer + "endpoint=[fe80::1%no such]:1\n", syscall.EINVAL, 2, "endpoint"},
		{peer + "persistent_keepalive_interval=off\n", syscall.EINVAL, 2, "persistent_keepalive_interval"},
		{peer + "replace_allowed_ips=\n", syscall.EINVAL, 2, "replace_allowed_ips"},
		{peer + "allowed_ip=10.0.0.0\n", syscall.EINVAL, 2, "allowed_ip"},
		{peer + "allowed_ip=10.0.0.0/33\n", syscall.EINVAL, 2, "allowed_ip"},
		{peer + "allowed_ip=--10.0.0.0/8\n", syscall.EINVAL, 2, "allowed_ip"},
		{peer + "protocol_version=2\n", syscall.EINVAL, 2, "protocol_version"},
		{"listen_port=1", syscall.EINVAL, 1, ""},
		{strings.Repeat("a", maxLine+1) + "\n", syscall.E2BIG, 1, ""},
	} {
		dev, err := ParseSet(strings.NewReader(tc.in))
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Errno != tc.errno || e.Line != tc.line || e.Key != tc.key {
			t.Errorf("%.40q: error %#v", tc.in, err)
		}
		if !errors.Is(err, tc.errno) {
			t.Errorf("%.40q: errors.Is does not find the errno", tc.in)
		}
		if diff := cmp.Diff(config.Device{}, dev, exact); diff != "" {
			t.Errorf("%.40q: error and a device: %s", tc.in, diff)
		}
	}
}

func TestErrorsNeverQuoteAKey(t *testing.T) {
	secret := strings.Repeat("5e", 31) + "5" // one digit short
	for _, in := range []string{
		"private_key=" + secret, secret, secret + "=", "public_key=" + hexA + "\npreshared_key=" + secret,
		"public_key=" + hexA + "\nprivate_key=" + secret, "private_key" + secret + "=x",
		"spread=" + secret, "spread_ports=" + secret,
	} {
		if _, err := ParseSet(strings.NewReader(in + "\n")); err == nil || strings.Contains(err.Error(), "5e5e5e") {
			t.Errorf("%.20q: got error %v, want an error", in, err)
		}
	}
}

func FuzzParseSet(f *testing.F) {
	f.Add("private_key=" + hexA + "\nlisten_port=1\nfwmark=2\nreplace_peers=true\npublic_key=" + hexB + "\nremove=true\n\n")
	f.Add("public_key=" + hexB + "\nupdate_only=true\npreshared_key=" + hex0 + "\nendpoint=[fe80::1%3]:7\nallowed_ip=-1.2.3.4/5\n")
	f.Add("public_key=" + hexB + "\nendpoint=[::ffff:1.2.3.4%3]:7\nallowed_ip=::ffff:1.2.3.4/100\nreplace_allowed_ips=true\n")
	f.Add("spread=on\nspread_ports=61000-61999\nspread=AUTO\n")
	f.Add("x\n")
	f.Fuzz(func(t *testing.T, in string) {
		dev, err := ParseSet(strings.NewReader(in))
		if err != nil {
			if errnoOf(err) == errnoUnknown {
				t.Errorf("error without errno: %v", err)
			}
			return
		}
		var b bytes.Buffer
		if err := WriteSet(&b, dev); err != nil {
			t.Fatal(err)
		}
		again, err := ParseSet(&b)
		if err != nil {
			t.Fatalf("parsing the output of WriteSet: %v", err)
		}
		if diff := cmp.Diff(dev, again, exact); diff != "" {
			t.Error(diff)
		}
	})
}

func TestForgetIsNoPolicyInAnyCase(t *testing.T) {
	got, err := ParseSet(strings.NewReader("public_key=" + hexA + "\npost_quantum=auto\npost_quantum=Forget\n"))
	if err != nil || !got.Peers[0].ForgetPostQuantum || got.Peers[0].PostQuantum == nil || *got.Peers[0].PostQuantum != config.PostQuantumAuto {
		t.Errorf("got %+v, %v, want both", got.Peers, err)
	}
	if _, err := ParseSet(strings.NewReader("post_quantum=forget\n")); err == nil {
		t.Error("the interface has nothing to forget, and there is no error")
	}
	if !slices.Contains(Features(), "set.post_quantum.forget") { // older daemons refuse the value
		t.Error("stats name no such feature")
	}
}
