// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/hostnet"
	"github.com/ropewalk/ropewalk/pkg/mesh"
)

// setup is what a tunnel's engine and interface are told. An MTU of zero stands for none.
type setup struct {
	port uint16
	mtu  int
}

// setupOf is what the tunnel should be told.
func (m *mesher) setupOf(l look) (setup, error) {
	s := setup{port: cmp.Or(uint16(l.spec.Port), m.cfg.Port, DefaultPort), mtu: cmp.Or(int(l.spec.MTU), m.cfg.MTU)}
	if s.mtu != 0 {
		return s, nil
	}
	link, err := m.cfg.Network.LinkMTU(l.own.Addrs)
	if err != nil {
		return s, err
	}
	s.mtu = link
	for _, a := range l.own.Addrs { // peers may be of any kind that the node is
		s.mtu = min(s.mtu, mesh.MTU(link, mesh.Through(a)))
	}
	return s, nil
}

// errEnded says that an engine did not live for long, and that it is too early for another.
var errEnded = errors.New("the tunnel ended by itself")

const (
	// shortLife is that of an engine before the next rests.
	shortLife = time.Minute
	// firstRest is the least time from one engine to the next. It doubles with each short life in a row, up to shortLife.
	firstRest = time.Second
)

// run has an engine run, with that setup, and returns how much of that it had to put right.
func (m *mesher) run(want setup, pods []netip.Prefix) (changes int, err error) {
	if m.engine != nil && closed(m.engine.Done()) {
		m.leave()
		m.rest = restAfter(time.Since(m.opened), m.rest)
	}
	if m.engine == nil {
		if time.Since(m.opened) < m.rest {
			return 0, fmt.Errorf("running the tunnel %s: %w", m.cfg.Tunnel, errEnded)
		}
		if err := m.open(want); err != nil {
			return 0, err
		}
	}
	if m.setup.port != want.port {
		if err := m.engine.Configure(config.Device{ListenPort: &want.port}); err != nil {
			return 0, fmt.Errorf("moving the tunnel %s to port %d: %w", m.cfg.Tunnel, want.port, err)
		}
		changes++
	}
	m.setup = want
	n, err := m.cfg.Network.SetInterface(m.cfg.Tunnel, want.mtu, pods)
	return changes + n, err
}

// restAfter is how long after an engine was opened the next one may be, if it lived for that long after a rest.
func restAfter(lived, rest time.Duration) time.Duration {
	if lived >= shortLife {
		return 0
	}
	return min(max(2*rest, firstRest), shortLife)
}

// open has an engine begin.
func (m *mesher) open(want setup) error {
	e, err := m.cfg.Open(m.cfg.Tunnel, want.mtu, m.cfg.Log)
	if err != nil {
		return fmt.Errorf("opening the tunnel %s: %w", m.cfg.Tunnel, err)
	}
	ports, mode := m.cfg.Ports, config.SpreadAuto
	err = e.Configure(config.Device{PrivateKey: &m.keys.current.key, ListenPort: &want.port, Spread: &mode, SpreadPorts: &ports})
	if err != nil {
		e.Close()
		return fmt.Errorf("setting the tunnel %s up: %w", m.cfg.Tunnel, err)
	}
	m.engine, m.setup, m.opened, m.fresh = e, want, time.Now(), true
	go func() {
		<-e.Done()
		m.again()
	}()
	m.cfg.Log.Info("tunnel is up", "interface", m.cfg.Tunnel, "port", want.port, "mtu", want.mtu, "key", m.keys.current.public())
	return nil
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// setInterface gives the tunnel's interface its MTU, and of the node's pods the first address, by which the node itself
// speaks to other nodes' pods: they would not let in what comes from any other. Somebody may have changed all that, and
// the node may have got its pods only now (calico #8039), or others than before, whose addresses are another node's by now.
func setInterface(name string, mtu int, pods []netip.Prefix) (changes int, err error) {
	if slices.ContainsFunc(pods, isIPv6) {
		if err := hostnet.OmitLinkLocal(name); err != nil {
			return 0, err
		}
	}
	has, err := hostnet.Addresses(name)
	if err != nil {
		return 0, err
	}
	var want []netip.Prefix
	for _, p := range pods {
		a := netip.PrefixFrom(p.Addr(), p.Addr().BitLen())
		want = append(want, a)
		if slices.Contains(has, a) {
			continue
		}
		changes++
		if err := hostnet.AddAddress(name, a); err != nil && !errors.Is(err, unix.EEXIST) {
			return changes, err
		}
	}
	n, err := removeAddresses(name, has, want)
	if changes += n; err != nil {
		return changes, err
	}
	l, err := hostnet.FindLink(name)
	if err != nil || l.Up && l.MTU == mtu {
		return changes, err
	}
	return changes + 1, hostnet.SetLinkUp(name, mtu)
}

// removeAddresses takes from an interface the single addresses that it has and is not to have.
func removeAddresses(name string, has, want []netip.Prefix) (changes int, err error) {
	for _, a := range has {
		if !a.IsSingleIP() || a.Addr().IsLinkLocalUnicast() || slices.Contains(want, a) {
			continue
		}
		changes++
		if err := hostnet.RemoveAddress(name, a); err != nil {
			return changes, err
		}
	}
	return changes, nil
}

func isIPv6(p netip.Prefix) bool { return !p.Addr().Is4() }

// errNoLink says that the node's addresses are no interface's.
var errNoLink = errors.New("no interface of this host has any of the node's addresses: give the MTU (--mtu, or spec.mtu)")

// linkMTU returns the MTU of the interface that has one of the addresses, the smallest of several.
func linkMTU(addrs []netip.Addr) (int, error) {
	links, err := hostnet.Links()
	if err != nil {
		return 0, err
	}
	has, err := hostnet.Dump(func() ([]netlink.Addr, error) {
		return netlink.AddrList(nil, netlink.FAMILY_ALL) //nolint:forbidigo // within hostnet.Dump
	})
	if err != nil {
		return 0, fmt.Errorf("listing addresses: %w", err)
	}
	mtu := 0
	for _, a := range has {
		addr, _ := netip.AddrFromSlice(a.IP)
		if !slices.Contains(addrs, addr.Unmap()) {
			continue
		}
		for _, l := range links {
			if l.Index == a.LinkIndex && (mtu == 0 || l.MTU < mtu) {
				mtu = l.MTU
			}
		}
	}
	if mtu == 0 {
		return 0, fmt.Errorf("%w: %v", errNoLink, addrs)
	}
	return mtu, nil
}
