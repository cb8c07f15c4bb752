// SPDX-License-Identifier: Apache-2.0

package spread

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func microsoftRSS(queues int) *RSS {
	return &RSS{Key: MicrosoftKey(), Indirection: EqualIndirection(queues)}
}

// wholeHash is an RSS whose queue is the whole hash, modulo a large prime, so that tests see its bits.
func wholeHash() *RSS {
	table := make([]uint32, 65521)
	for i := range table {
		table[i] = uint32(i)
	}
	return &RSS{Key: MicrosoftKey(), Indirection: table}
}

func TestQueueIsTableEntryOfHash(t *testing.T) {
	for _, v := range vectors {
		src, dst := netip.MustParseAddrPort(v.src), netip.MustParseAddrPort(v.dst)
		r := wholeHash()
		if got, err := r.Queue(src, dst); err != nil || got != int(v.tuple%65521) {
			t.Errorf("%s to %s: queue %d (%v), want %d", src, dst, got, err, v.tuple%65521)
		}
		r.UDP4, r.UDP6 = AddressesOnly, AddressesOnly
		if got, err := r.Queue(src, dst); err != nil || got != int(v.addresses%65521) {
			t.Errorf("%s to %s by addresses: queue %d (%v), want %d", src, dst, got, err, v.addresses%65521)
		}
	}
}

func TestTransformsMatchKernelDocumentation(t *testing.T) {
	// Documentation/networking/scaling.rst, "RSS: Receive Side Scaling".
	src, dst := netip.MustParseAddrPort("192.0.2.1:61000"), netip.MustParseAddrPort("198.51.100.2:51820")
	for transform, input := range map[Transform][]byte{
		Plain:          {192, 0, 2, 1, 198, 51, 100, 2, 0xee, 0x48, 0xca, 0x6c},
		SymmetricXOR:   {6, 51, 102, 3, 6, 51, 102, 3, 0x24, 0x24, 0x24, 0x24},
		SymmetricORXOR: {198, 51, 102, 3, 6, 51, 102, 3, 0xee, 0x6c, 0x24, 0x24},
	} {
		r := wholeHash()
		r.Transform = transform
		want := int(slowToeplitz(r.Key, input) % 65521)
		if got, err := r.Queue(src, dst); err != nil || got != want {
			t.Errorf("transform %d: queue %d (%v), want %d", transform, got, err, want)
		}
		back, err := r.Queue(dst, src)
		if err != nil || (back == want) != (transform != Plain) {
			t.Errorf("transform %d: queue %d one way, %d the other", transform, want, back)
		}
	}
}

func TestMappedIPv4AddressesAreUnmapped(t *testing.T) {
	r := wholeHash()
	src, dst := netip.MustParseAddrPort("192.0.2.1:1"), netip.MustParseAddrPort("192.0.2.2:2")
	mapped := netip.AddrPortFrom(netip.MustParseAddr("::ffff:192.0.2.1"), 1)
	want, _ := r.Queue(src, dst)
	if got, err := r.Queue(mapped, dst); err != nil || got != want {
		t.Errorf("queue %d (%v), want %d", got, err, want)
	}
}

func TestQueuesListsTableQueues(t *testing.T) {
	r := &RSS{Indirection: []uint32{7, 3, 7, 0, 4294967295}}
	if got := r.Queues(); !slices.Equal(got, []int{0, 3, 7, 4294967295}) {
		t.Errorf("got %v, want %v", got, []int{0, 3, 7, 4294967295})
	}
	if got := len(new(RSS).Queues()); got != 0 {
		t.Errorf("%d queues in no table", got)
	}
}

func TestEqualIndirectionContainsEachQueue(t *testing.T) {
	for n, size := range map[int]int{-1: 128, 0: 128, 1: 128, 16: 128, 48: 128, 128: 128, 129: 256, 1000: 1024} {
		table := EqualIndirection(n)
		if got := len((&RSS{Indirection: table}).Queues()); len(table) != size || got != max(n, 1) {
			t.Errorf("%d queues: %d entries of %d queues", n, len(table), got)
		}
	}
}

func TestUnknownHashIsRejected(t *testing.T) {
	v4, v6 := netip.MustParseAddrPort("192.0.2.1:1"), netip.MustParseAddrPort("[2001:db8::1]:1")
	for name, c := range map[string]struct {
		rss      RSS
		src, dst netip.AddrPort
		unknown  bool
	}{
		"other function":   {RSS{Function: OtherFunction, Key: MicrosoftKey(), Indirection: []uint32{0}}, v4, v4, true},
		"other transform":  {RSS{Transform: OtherTransform, Key: MicrosoftKey(), Indirection: []uint32{0}}, v4, v4, true},
		"other fields":     {RSS{UDP4: OtherFields, Key: MicrosoftKey(), Indirection: []uint32{0}}, v4, v4, true},
		"no table":         {RSS{Key: MicrosoftKey()}, v4, v4, true},
		"no key":           {RSS{Indirection: []uint32{0}}, v4, v4, true},
		"key of 15 bytes":  {RSS{Key: make([]byte, 15), Indirection: []uint32{0}}, v4, v4, true},
		"key of 39 bytes":  {RSS{Key: make([]byte, 39), Indirection: []uint32{0}}, v6, v6, true},
		"two IP versions":  {*microsoftRSS(4), v4, v6, false},
		"no addresses":     {*microsoftRSS(4), netip.AddrPort{}, netip.AddrPort{}, false},
		"no local address": {*microsoftRSS(4), v4, netip.AddrPort{}, false},
	} {
		if _, err := c.rss.Queue(c.src, c.dst); err == nil || errors.Is(err, ErrUnknownHash) != c.unknown {
			t.Errorf("%s: got error %v, want an error", name, err)
		}
		if _, err := Plan(&c.rss, c.src.Addr(), c.dst, DefaultPorts, 4); err == nil || errors.Is(err, ErrUnknownHash) != c.unknown {
			t.Errorf("%s: planning gives %v", name, err)
		}
	}
	for key, addr := range map[int]netip.AddrPort{16: v4, 40: v6} {
		r := RSS{Key: make([]byte, key), Indirection: []uint32{0}}
		if _, err := r.Queue(addr, addr); err != nil {
			t.Errorf("key of %d bytes: %v", key, err)
		}
	}
}

func TestAddressHashErrorNamesEthtoolCommand(t *testing.T) {
	for addr, want := range map[string]string{"192.0.2.1": "-N eth7 rx-flow-hash udp4 sdfn", "2001:db8::1": "-N eth7 rx-flow-hash udp6 sdfn"} {
		r := microsoftRSS(4)
		r.Device, r.UDP4, r.UDP6 = "eth7", AddressesOnly, AddressesOnly
		a := netip.MustParseAddr(addr)
		_, err := Plan(r, a, netip.AddrPortFrom(a, 51820), DefaultPorts, 4)
		if !errors.Is(err, ErrNotByPort) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want %v", addr, err, ErrNotByPort)
		}
		if err := r.ByPort(a); !errors.Is(err, ErrNotByPort) {
			t.Errorf("%s: got error %v, want %v", addr, err, ErrNotByPort)
		}
	}
	if err := microsoftRSS(4).ByPort(netip.MustParseAddr("192.0.2.1")); err != nil {
		t.Error(err)
	}
}
