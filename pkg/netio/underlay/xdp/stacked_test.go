// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/udp"
	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
	"github.com/ropewalk/ropewalk/test/expect"
)

// addressRecorder is a program that records the addresses that were set, and the source ports.
type addressRecorder struct {
	*redirectAll
	mu        sync.Mutex
	addresses []netip.Addr
	sources   []uint16
}

func (p *addressRecorder) AddSourcePort(port uint16) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sources = append(p.sources, port)
	return nil
}

// knowsSources reports whether exactly these source ports were added, once each.
func (p *addressRecorder) knowsSources(ports ...uint16) func() bool {
	return func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return slices.Equal(p.sources, ports)
	}
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

// TestProgramLearnsSourcePorts: those from before it, after it, and of the program before.
func TestProgramLearnsSourcePorts(t *testing.T) {
	p := newPair(t, 1)
	u := p.openUDP(0, udp.Config{})
	open := func(port underlay.Port, source uint16) {
		expect.NoError(t, p.hosts[0].Do(func() error {
			_, err := port.OpenSource(source)
			return err
		}))
	}
	open(u, 61000)
	binding := func() (Binding, *addressRecorder) {
		program := &addressRecorder{redirectAll: newRedirectAll(t, u.LocalPort())}
		return Binding{Device: p.devs[0], Mode: xsk.Copy, Program: program}, program
	}
	var next atomic.Pointer[Binding]
	b, first := binding()
	other, second := binding()
	next.Store(&b)
	port := p.open(0, u, nil, Config{Choose: func() Binding { return *next.Load() }})
	expect.Eventually(t, "the program to know the first source", first.knowsSources(61000))
	open(port, 61001)
	expect.Eventually(t, "the program to know the second source", first.knowsSources(61000, 61001))
	next.Store(&other)
	port.Reconsider()
	expect.Eventually(t, "the next program to know both", second.knowsSources(61000, 61001))
}
