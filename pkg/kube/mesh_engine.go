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

// desiredSetup is what the tunnel should be told.
func (m *meshReconciler) desiredSetup(l reconcileInput) (setup, error) {
	s := setup{port: cmp.Or(uint16(l.spec.Port), m.cfg.Port, DefaultPort), mtu: cmp.Or(int(l.spec.MTU), m.cfg.MTU)}
	if s.mtu != 0 {
		return s, nil
	}
	link, err := m.cfg.Network.LinkMTU(l.self.Addrs)
	if err != nil {
		return s, err
	}
	s.mtu = link
	for _, a := range l.self.Addrs { // peers may be of any kind that the node is
		s.mtu = min(s.mtu, mesh.MTU(link, mesh.WireGuardLayer(a)))
	}
	return s, nil
}

// errEngineExited says that an engine did not live for long, and that it is too early for another.
var errEngineExited = errors.New("the tunnel ended by itself")

const (
	// minEngineLife is that of an engine before the next rests.
	minEngineLife = time.Minute
	// minReopenDelay is the least time from one engine to the next. It doubles with each short life in a row, up to minEngineLife.
	minReopenDelay = time.Second
)

// start has an engine run, with that setup, and returns how much of that it had to put right.
func (m *meshReconciler) ensureEngine(want setup, pods []netip.Prefix) (changes int, err error) {
	if m.engine != nil && isClosed(m.engine.Done()) {
		m.stop()
		m.reopenDelay = reopenDelayAfter(time.Since(m.opened), m.reopenDelay)
	}
	if m.engine == nil {
		if time.Since(m.opened) < m.reopenDelay {
			return 0, fmt.Errorf("running the tunnel %s: %w", m.cfg.Tunnel, errEngineExited)
		}
		if err := m.openEngine(want); err != nil {
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

// reopenDelayAfter is how long after an engine was opened the next one may be, if it lived for that long after a rest.
func reopenDelayAfter(lived, rest time.Duration) time.Duration {
	if lived >= minEngineLife {
		return 0
	}
	return min(max(2*rest, minReopenDelay), minEngineLife)
}

// openEngine has an engine begin.
func (m *meshReconciler) openEngine(want setup) error {
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
	m.engine, m.setup, m.opened, m.hasNoPeers = e, want, time.Now(), true
	go func() {
		<-e.Done()
		m.trigger()
	}()
	m.cfg.Log.Info("tunnel is up", "interface", m.cfg.Tunnel, "port", want.port, "mtu", want.mtu, "key", m.keys.current.public())
	return nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// configureInterface gives the tunnel's interface its MTU, and of the node's pods the first address, by which the node itself
// speaks to other nodes' pods: they would not let in what comes from any other. Somebody may have changed all that, and
// the node may have got its pods only now (calico #8039), or others than before, whose addresses are another node's by now.
func configureInterface(name string, mtu int, pods []netip.Prefix) (changes int, err error) {
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
	n, err := removeOtherAddresses(name, has, want)
	if changes += n; err != nil {
		return changes, err
	}
	l, err := hostnet.FindLink(name)
	if err != nil || l.Up && l.MTU == mtu {
		return changes, err
	}
	return changes + 1, hostnet.SetLinkUp(name, mtu)
}

// removeOtherAddresses takes from an interface the single addresses that it has and is not to have.
func removeOtherAddresses(name string, has, want []netip.Prefix) (changes int, err error) {
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

// errNoInterface says that the node's addresses are no interface's.
var errNoInterface = errors.New("no interface of this host has any of the node's addresses: give the MTU (--mtu, or spec.mtu)")

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
		return 0, fmt.Errorf("%w: %v", errNoInterface, addrs)
	}
	return mtu, nil
}
