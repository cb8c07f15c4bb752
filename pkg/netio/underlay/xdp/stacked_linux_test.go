// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"errors"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay/udp"
	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
	"github.com/ropewalk/ropewalk/test/expect"
)

// addressRecorder is a program that records the addresses that were set.
type addressRecorder struct {
	*redirectAll
	mu        sync.Mutex
	addresses []netip.Addr
}

func (p *addressRecorder) SetAddresses(addresses []netip.Addr) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.addresses = addresses
	return nil
}

func (p *addressRecorder) knows(a netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Contains(p.addresses, a)
}

// TestStackedDeviceLeavesLinkLocalToStack: with stacked devices, only the stack can determine the link of a link-local
// sender.
func TestStackedDeviceLeavesLinkLocalToStack(t *testing.T) {
	p := newPair(t, 1)
	local := netip.MustParsePrefix("fe80::1:1/64")
	expect.NoError(t, p.hosts[0].SetUp(p.devs[0], 0, local))
	u := p.openUDP(0, udp.Config{})
	program := &addressRecorder{redirectAll: newRedirectAll(t, u.LocalPort())}
	port := p.open(0, u, program, Config{Binding: Binding{Mode: xsk.Copy}})
	s := &testNet{pair: p, port: port}
	if !program.knows(local.Addr()) || !program.knows(addrs6[0].Addr()) {
		t.Fatalf("without others: %v", program.addresses)
	}
	var unable error
	s.link(0, func(parent netlink.Link) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.ParentIndex = "upper", parent.Attrs().Index
		unable = netlink.LinkAdd(&netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_BRIDGE})
		return nil
	})
	if errors.Is(unable, unix.EOPNOTSUPP) {
		t.Skip("needs a kernel with macvlan (CONFIG_MACVLAN)")
	}
	expect.NoError(t, unable)
	expect.Eventually(t, "link-local addresses to go", func() bool { return !program.knows(local.Addr()) && program.knows(addrs6[0].Addr()) })
	s.do(0, func() error {
		upper, err := netlink.LinkByName("upper")
		return errors.Join(err, netlink.LinkDel(upper))
	})
	expect.Eventually(t, "link-local addresses to be back", func() bool { return program.knows(local.Addr()) })
}
