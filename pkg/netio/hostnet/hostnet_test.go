// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestInterruptedDumpIsRepeatedUntilConsistent(t *testing.T) {
	for _, interruption := range []error{netlink.ErrDumpInterrupted, unix.EINTR} {
		calls := 0
		got, err := Dump(func() (int, error) {
			calls++
			if calls < 3 {
				return 0, interruption
			}
			return 42, nil
		})
		if got != 42 || err != nil || calls != 3 {
			t.Errorf("%v: got %d, %v after %d calls, want 42 after 3", interruption, got, err, calls)
		}
	}
}

func TestDumpFailsWhenAlwaysInterrupted(t *testing.T) {
	calls := 0
	_, err := Dump(func() (int, error) { calls++; return 0, netlink.ErrDumpInterrupted })
	if !errors.Is(err, netlink.ErrDumpInterrupted) || calls != dumpAttempts {
		t.Errorf("got %v after %d calls", err, calls)
	}
}

func TestOtherDumpErrorsAreNotRepeated(t *testing.T) {
	calls := 0
	_, err := Dump(func() (int, error) { calls++; return 0, unix.EPERM })
	if !errors.Is(err, unix.EPERM) || calls != 1 {
		t.Errorf("got %v after %d calls", err, calls)
	}
}

func TestPrefixesSurviveRoundTripThroughKernel(t *testing.T) {
	for _, text := range []string{"10.1.2.3/24", "0.0.0.0/0", "192.0.2.1/32", "::/0", "fd00::1/64", "fe80::2/128"} {
		want := netip.MustParsePrefix(text)
		if got := prefixOf(ipNet(want)); got != want {
			t.Errorf("%s became %s", want, got)
		}
	}
	sixteen := &net.IPNet{IP: net.ParseIP("10.1.2.3"), Mask: net.CIDRMask(24, 32)}
	if got := prefixOf(sixteen); got != netip.MustParsePrefix("10.1.2.3/24") {
		t.Errorf("IPv4 in 16 bytes became %s", got)
	}
	if got := prefixOf(nil); got.IsValid() {
		t.Errorf("nil became %s", got)
	}
}

func TestMissingLinkReturnsErrNoLink(t *testing.T) {
	enterNamespace(t)
	_, findErr := FindLink("absent0")
	_, addrErr := Addresses("absent0")
	for name, err := range map[string]error{
		"FindLink":      findErr,
		"Addresses":     addrErr,
		"SetLinkUp":     SetLinkUp("absent0", 1420),
		"DeleteLink":    DeleteLink("absent0"),
		"RemoveAddress": RemoveAddress("absent0", netip.MustParsePrefix("10.0.0.1/24")),
		"AddAddress":    AddAddress("absent0", netip.MustParsePrefix("10.0.0.1/24")),
		"AddRoute":      AddRoute(Route{Dst: netip.MustParsePrefix("10.0.0.0/8"), Link: "absent0"}),
		"OmitLinkLocal": DisableLinkLocal("absent0"),
	} {
		if !errors.Is(err, ErrNoLink) {
			t.Errorf("%s: got %v, want ErrNoLink", name, err)
		}
	}
}

func TestLinkIsConfiguredAndDeleted(t *testing.T) {
	enterNamespace(t)
	addVeth(t, "hn0", "hn1")
	addrs := []netip.Prefix{netip.MustParsePrefix("10.9.0.1/24"), netip.MustParsePrefix("fd09::1/64")}
	if err := DisableLinkLocal("hn0"); err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if err := AddAddress("hn0", a); err != nil {
			t.Fatal(err)
		}
	}
	if err := SetLinkUp("hn0", 1333); err != nil {
		t.Fatal(err)
	}
	link, err := FindLink("hn0")
	if err != nil || !link.Up || link.MTU != 1333 || link.Name != "hn0" {
		t.Errorf("got %+v, error %v, want no error", link, err)
	}
	links, err := Links()
	if err != nil || !slices.ContainsFunc(links, func(l Link) bool { return l == link && l.Kind == "veth" }) {
		t.Errorf("%+v has no %+v, %v", links, link, err)
	}
	if err := AddAddress("hn0", addrs[0]); !errors.Is(err, unix.EEXIST) {
		t.Errorf("adding an address twice: got %v", err)
	}
	got, err := Addresses("hn0")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(texts(addrs), withoutLinkLocal(got)); diff != "" {
		t.Error(diff)
	}
	for range 2 { // the second removal finds no address
		if err := RemoveAddress("hn0", addrs[0]); err != nil {
			t.Error(err)
		}
	}
	if got, err = Addresses("hn0"); err != nil || len(withoutLinkLocal(got)) != 1 || got[0] != addrs[1] {
		t.Errorf("got addresses %v, error %v, want no error", got, err)
	}
	if err := DeleteLink("hn0"); err != nil {
		t.Fatal(err)
	}
	if _, err := FindLink("hn0"); !errors.Is(err, ErrNoLink) {
		t.Errorf("after deletion: got %v", err)
	}
}

// withoutLinkLocal drops the address that the kernel generated before the test disabled it.
func withoutLinkLocal(prefixes []netip.Prefix) []string {
	var out []string
	for _, p := range prefixes {
		if !p.Addr().IsLinkLocalUnicast() {
			out = append(out, p.String())
		}
	}
	return out
}

func texts(prefixes []netip.Prefix) []string {
	var out []string
	for _, p := range prefixes {
		out = append(out, p.String())
	}
	return out
}

func TestErrorNamesSysctlThatDisablesIPv6(t *testing.T) {
	for disabled, want := range map[string]string{
		"all":     "IPv6 is disabled by the sysctl net.ipv6.conf.all.disable_ipv6",
		"default": "IPv6 is disabled by the sysctl net.ipv6.conf.default.disable_ipv6",
		"wg0.1":   "IPv6 is disabled by the sysctl net.ipv6.conf.wg0/1.disable_ipv6",
	} {
		t.Run(disabled, func(t *testing.T) {
			enterNamespace(t)
			setIPv6(t, "all", "disable_ipv6", "0")
			setIPv6(t, disabled, "disable_ipv6", "1") // if it exists already
			addVeth(t, "wg0.1", "v1")
			setIPv6(t, disabled, "disable_ipv6", "1")
			if Sysctl("ipv6/conf/wg0.1/disable_ipv6") == 0 {
				t.Skip("needs IPv6")
			}
			r := Route{Dst: netip.MustParsePrefix("::/0"), Link: "wg0.1"}
			for before, err := range map[string]error{
				"adding address fd00::1/64 to wg0.1: ": AddAddress("wg0.1", netip.MustParsePrefix("fd00::1/64")),
				"adding route ::/0 to wg0.1: ":         AddRoute(r),
				"appending route ::/0 to wg0.1: ":      AppendRoute(r),
			} {
				if err == nil || err.Error() != before+want {
					t.Errorf("got %v, want %s%s", err, before, want)
				}
			}
			if err := AddAddress("wg0.1", netip.MustParsePrefix("192.0.2.1/24")); err != nil {
				t.Error("IPv4: ", err)
			}
		})
	}
}
