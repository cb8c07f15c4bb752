// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/test/expect"
)

const toSave = `# a comment that is lost
[Interface]
PrivateKey = $KEY
ListenPort = 51820
Address = 10.9.0.1/24
MTU = 1300
Table = off
DNS = 10.9.0.53, corp.example
SaveConfig = true
PostUp = echo %i; true
PreDown = true
Spread = off
Lanes = 2
SpreadPorts = 2000-3000
[Peer]
PublicKey = $A
AllowedIPs = 10.9.0.0/16
PersistentKeepalive = 25
`

func TestDownWithSaveConfigSavesHostState(t *testing.T) {
	h := newHost(t)
	i := h.open("wg0", toSave)
	h.up(i)
	expect.NoError(t, hostnet.AddAddress("wg0", netip.MustParsePrefix("fd09::1/64")))
	expect.NoError(t, hostnet.SetLinkUp("wg0", 1290))
	expect.NoError(t, os.Chmod(i.Path, 0o644))
	expect.NoError(t, h.Down(t.Context(), i))
	want := `[Interface]
Address = 10.9.0.1/24
Address = fd09::1/64
DNS = 10.9.0.53
DNS = corp.example
MTU = 1290
Table = off
SaveConfig = true
PostUp = echo %i; true
PreDown = true
Spread = off
SpreadPorts = 2000-3000
Lanes = 2
ListenPort = 51820
PrivateKey = ` + testPrivateKey + `

[Peer]
PublicKey = ` + testPeerA + `
AllowedIPs = 10.9.0.0/16
PersistentKeepalive = 25
`
	got, err := os.ReadFile(i.Path)
	expect.NoError(t, err)
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
	info, err := os.Stat(i.Path)
	expect.NoError(t, err)
	if info.Mode() != 0o600 {
		t.Errorf("got mode %v, want 0600", info.Mode())
	}
}

func TestSavedFileRestoresTheSameInterface(t *testing.T) {
	h := newHost(t)
	i := h.open("wg0", everything)
	h.up(i)
	want := h.snapshot()
	expect.NoError(t, h.Save(t.Context(), i))
	saved, err := os.ReadFile(i.Path)
	expect.NoError(t, err)
	expect.NoError(t, h.Down(t.Context(), i))
	h.up(h.open("wg0", string(saved)))
	if diff := cmp.Diff(want, h.snapshot()); diff != "" {
		t.Error(diff)
	}
}

func TestSaveWithoutInterfaceKeepsTheFile(t *testing.T) {
	h := newHost(t)
	i := h.open("wg0", toSave)
	before, err := os.ReadFile(i.Path)
	expect.NoError(t, err)
	if err := h.Save(t.Context(), i); !errors.Is(err, ErrNotWireGuard) {
		t.Errorf("got error %v, want %v", err, ErrNotWireGuard)
	}
	after, err := os.ReadFile(i.Path)
	expect.NoError(t, err)
	if diff := cmp.Diff(before, after); diff != "" {
		t.Error(diff)
	}
}

func TestSaveKeepsNameOfAbsentLink(t *testing.T) {
	h := newHost(t)
	h.Daemon = fakeCommand(fakeLostLink, h.Sockets)
	i := h.open("wg0", "[Interface]\nPrivateKey = $KEY\nSaveConfig = true\n[Peer]\nPublicKey = $A\nEndpoint = [fe80::b%u0]:51820\n")
	h.up(i)
	l, err := netlink.LinkByName("u0")
	expect.NoError(t, err)
	expect.NoError(t, netlink.LinkDel(l))
	expect.NoError(t, h.Down(t.Context(), i))
	got, err := os.ReadFile(i.Path)
	if err != nil || !strings.Contains(string(got), "Endpoint = [fe80::b%u0]:51820") {
		t.Errorf("the name of the link is not in\n%s", got)
	}
}
