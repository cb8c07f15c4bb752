// SPDX-License-Identifier: Apache-2.0

package conffile

import (
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/test/expect"
	"github.com/ropewalk/ropewalk/test/namespace"
)

// TestAddressAgreesWithIP gives the same addresses to ip(8) and to a file, and compares what the interface has with what the file says.
func TestAddressAgreesWithIP(t *testing.T) {
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs ip(8)")
	}
	namespace.Enter(t)
	for _, text := range []string{
		"10.9.0.1/24", "10.9.0.1", "10.9.0.1/255.255.255.0", "10.9.0.1/255.255.255.255", "10.9.0.1/255.255", "10.9.0.1/255.0.255.0",
		"10.9.0.1/0xff.0xff.0.0", "10.9/16", "10.9", "10", "10.9.1/24", "010.011.000.001/24", "010.009.000.001/24", "0x0a.9.0.1/24", "10.9.0.256/24",
		"10.9.0.1.2/24", "10..9/16", "10.9./16", "10.9.0.1/33", "10.9.0.1/", "10.9.0.1/024", "10.9.0.1/0x18", "10.9.0.1/+24", "10.9.0.1/-1",
		"fd00::1/64", "fd00::1", "fd00::1/129", "fd00::1/0100", "fd00::1/255.255.255.0", "::ffff:10.9.0.1/120", "::10.9.0.1/120", "fe80::1%lo/64",
		"10.9.0.1/255", "10.9.0.1/254", "10.9.0.1/192", "10.9.0.1/0", "10.9.0.1/0xff", "10.9.0.1/4294967295", "10.9.0.1/4294967296", "fd00::1/255",
		"fd00::1/192", "nonsense/24",
	} {
		family := "-4"
		if strings.Contains(text, ":") { // as wg-quick
			family = "-6"
		}
		out, ipErr := exec.Command("ip", family, "address", "add", text, "dev", "lo").CombinedOutput()
		f, err := Parse("wg0.conf", strings.NewReader("[Interface]\nAddress = "+text+"\n"), Quick)
		if (err == nil) != (ipErr == nil) {
			t.Errorf("%q: ip: %v, %s: got %v", text, ipErr, out, err)
		}
		if err != nil {
			continue
		}
		want, err := hostnet.Addresses("lo")
		if err != nil || !slices.Equal(f.Interface.Address, want) {
			t.Errorf("%q: got %v, want %v, error %v", text, f.Interface.Address, want, err)
		}
		for _, a := range want {
			expect.NoError(t, hostnet.RemoveAddress("lo", a))
		}
	}
}

func TestNumericHostNeedsNoLookup(t *testing.T) {
	resolve := NewResolver((&names{}).lookup(0))
	for text, want := range map[string]string{
		"0xc0000202:1": "192.0.2.2:1", "3221225986:1": "192.0.2.2:1", "192.0.514:1": "192.0.2.2:1", "192.514:1": "192.0.2.2:1",
		"192.000.002.002:1": "192.0.2.2:1", "0300.0x0.02.2:1": "192.0.2.2:1", "010.1:1": "8.0.0.1:1",
	} {
		got, err := resolve(t.Context(), text)
		if err != nil || got.AddrPort != netip.MustParseAddrPort(want) {
			t.Errorf("%q: got %v, error %v, want %s", text, got, err, want)
		}
		if name := endpointName(text); name != "" {
			t.Errorf("%q: the device gets the name %q to look up", text, name)
		}
	}
}

func TestEndpointNameHasNumericPort(t *testing.T) {
	for text, want := range map[string]string{"vpn.example:domain": "vpn.example:53", "vpn.example:0443": "vpn.example:443", "vpn.example:0": ""} {
		if got := endpointName(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
