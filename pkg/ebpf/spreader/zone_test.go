// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/mdlayher/genetlink"
	genl "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/ropewalk/ropewalk/test/expect"
)

// TestLinkLocalPeersOfTwoDevicesDiffer has peers with the same address on two devices, one with this host's address of another device, and two on
// no device with the programs.
func TestLinkLocalPeersOfTwoDevicesDiffer(t *testing.T) {
	r := newRig(t)
	other := r.another("other", "10.1.0.1/24")
	r.here.do(func() error {
		l, err := netlink.LinkByName(r.here.device)
		if err != nil {
			return err
		}
		a, err := netlink.ParseAddr("fe80::9/64")
		if err != nil {
			return err
		}
		return netlink.AddrAdd(l, a)
	})
	r.here.finder.set(wg("[fe80::7%cable.7]:51820", "[fe80::7%"+other+"]:51820", "[fe80::9%cable.7]:51820", "[fe80::9%"+other+"]:51820", "[fe80::7]:51820", "[fe80::7%lo]:51820"))
	r.here.socket(port)
	report := r.here.attach(r.here.config())
	if got, want := fmt.Sprint(report.Peers), fmt.Sprintf("[[fe80::7%%cable.7]:51820 [fe80::7%%%[1]s]:51820 [fe80::9%%%[1]s]:51820]", other); got != want {
		t.Errorf("got the peers %s, want %s", got, want)
	}
	var skipped []string
	for _, s := range report.Skipped {
		skipped = append(skipped, s.Key)
	}
	if fmt.Sprint(skipped) != "[c e f]" || len(report.Warnings) > 0 {
		t.Errorf("got skipped %+v, warnings %q, want c, e and f", report.Skipped, report.Warnings)
	}
	r.here.do(func() error { return r.here.host.SetPaused(t.Context(), netip.MustParseAddr("fe80::7%"+other), true) })
	st := r.here.status()
	if len(st.Problems) > 0 || len(st.Tunnels[0].Peers) != 3 || len(st.Tunnels[0].Skipped) != 3 {
		t.Errorf("got status %+v", st)
	}
	for _, p := range st.Tunnels[0].Peers {
		if want := p.Endpoint.String() == "[fe80::7%"+other+"]:51820"; p.Paused != want || p.PublicKey == "" {
			t.Errorf("got %+v, want paused %v, and a key", p, want)
		}
	}
	if changed := r.reconciled(); changed {
		t.Error("another look changes something")
	}
}

// reconciled reports whether here's state had to be changed.
func (r *rig) reconciled() (changed bool) {
	r.Helper()
	r.here.do(func() error {
		found, err := r.here.host.reconcile(r.Context(), r.here.config(), history{})
		changed = found.changed
		return err
	})
	return changed
}

func TestZonesOfEndpointsAreDecoded(t *testing.T) {
	endpoint := func(a netip.AddrPort, zone uint32) []byte {
		b := make([]byte, unix.SizeofSockaddrInet6)
		binary.NativeEndian.PutUint16(b, unix.AF_INET6)
		binary.BigEndian.PutUint16(b[2:], a.Port())
		copy(b[8:], a.Addr().AsSlice())
		binary.NativeEndian.PutUint32(b[24:], zone)
		return b
	}
	at := netip.MustParseAddrPort
	all := [][]byte{endpoint(at("[fe80::7]:51820"), 3), endpoint(at("[fe80::7]:51821"), 0), endpoint(at("[2001:db8::7]:51820"), 3), make([]byte, unix.SizeofSockaddrInet4), nil}
	message := genl.NewAttributeEncoder()
	message.String(unix.WGDEVICE_A_IFNAME, "wg0")
	message.Nested(unix.WGDEVICE_A_PEERS, func(peers *genl.AttributeEncoder) error {
		for i, e := range all {
			peers.Nested(0, func(peer *genl.AttributeEncoder) error {
				peer.Bytes(unix.WGPEER_A_PUBLIC_KEY, make([]byte, 31)) // not a key
				if e != nil {
					peer.Bytes(unix.WGPEER_A_ENDPOINT, e)
				}
				peer.Bytes(unix.WGPEER_A_PUBLIC_KEY, append([]byte{byte(i)}, make([]byte, 31)...))
				return nil
			})
		}
		return nil
	})
	b, err := message.Encode()
	expect.NoError(t, err)
	got := map[string]netip.AddrPort{}
	expect.NoError(t, decodeEndpoints(b, got))
	want := map[string]netip.AddrPort{}
	for i, e := range []string{"[fe80::7%3]:51820", "[fe80::7]:51821", "[2001:db8::7]:51820"} {
		want[wgtypes.Key{byte(i)}.String()] = at(e)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for n := range b {
		_ = decodeEndpoints(b[:n], map[string]netip.AddrPort{}) // must not panic
	}
}

func TestZonesAreNamesAndIndices(t *testing.T) {
	z := zones{3: "eth0"}
	for index, name := range map[string]string{"[fe80::1%3]:1": "[fe80::1%eth0]:1", "[fe80::1%4]:1": "[fe80::1%4]:1", "192.0.2.1:1": "192.0.2.1:1", "[fe80::1]:1": "[fe80::1]:1"} {
		i, n := netip.MustParseAddrPort(index), netip.MustParseAddrPort(name)
		if got := z.named(i); got != n {
			t.Errorf("%s: got the name %s, want %s", i, got, n)
		}
		if got := z.indexed(n); got != i {
			t.Errorf("%s: got the index %s, want %s", n, got, i)
		}
	}
}

// TestKernelTunnelHasZones has a peer of the kernel's WireGuard with a link-local endpoint, which wgctrl can neither set nor read.
func TestKernelTunnelHasZones(t *testing.T) {
	r := newRig(t)
	if err := r.here.lab.Do(func() error {
		return netlink.LinkAdd(&netlink.Wireguard{LinkAttrs: netlink.LinkAttrs{Name: "wg0"}})
	}); err != nil {
		t.Skipf("needs the kernel's WireGuard: %v", err)
	}
	r.here.do(func() error {
		l, err := netlink.LinkByName(r.here.device)
		if err != nil {
			return err
		}
		if err := setEndpoint("wg0", netip.MustParseAddrPort("[fe80::7]:51820"), l.Attrs().Index); err != nil {
			return err
		}
		tunnels, err := WireGuard{}.Tunnels()
		if want := "[fe80::7%cable.7]:51820"; err == nil && (len(tunnels) != 1 || len(tunnels[0].Peers) != 1 || tunnels[0].Peers[0].Endpoint.String() != want) {
			t.Errorf("got %+v, want a peer at %s", tunnels, want)
		}
		return err
	})
}

// setEndpoint adds a peer with an endpoint in a zone to a kernel tunnel (include/uapi/linux/wireguard.h).
func setEndpoint(name string, to netip.AddrPort, zone int) error {
	conn, err := genetlink.Dial(nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	family, err := conn.GetFamily(unix.WG_GENL_NAME)
	if err != nil {
		return err
	}
	endpoint := make([]byte, unix.SizeofSockaddrInet6)
	binary.NativeEndian.PutUint16(endpoint, unix.AF_INET6)
	binary.BigEndian.PutUint16(endpoint[2:], to.Port())
	copy(endpoint[8:], to.Addr().AsSlice())
	binary.NativeEndian.PutUint32(endpoint[24:], uint32(zone))
	request := genl.NewAttributeEncoder()
	request.String(unix.WGDEVICE_A_IFNAME, name)
	request.Nested(unix.WGDEVICE_A_PEERS, func(peers *genl.AttributeEncoder) error {
		peers.Nested(0, func(peer *genl.AttributeEncoder) error {
			peer.Bytes(unix.WGPEER_A_PUBLIC_KEY, append([]byte{1}, make([]byte, 31)...))
			peer.Bytes(unix.WGPEER_A_ENDPOINT, endpoint)
			return nil
		})
		return nil
	})
	data, err := request.Encode()
	if err != nil {
		return err
	}
	header := genetlink.Header{Command: unix.WG_CMD_SET_DEVICE, Version: unix.WG_GENL_VERSION}
	_, err = conn.Execute(genetlink.Message{Header: header, Data: data}, family.ID, genl.Request|genl.Acknowledge)
	return err
}
