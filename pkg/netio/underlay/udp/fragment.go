// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/toobig"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

// The option to fragment belongs to a socket. So runs whose option differs from the port's leave
// from groups of their own. Such a group has a socket for each source that has sent such a run.
const (
	// probeGroup is the group of runs with DontFragment.
	probeGroup = controlGroup + 1
	// fragmentGroup is the group of runs with MayFragment.
	fragmentGroup = probeGroup + 1

	groups = fragmentGroup + 1
)

// ownSendBuffer is the send buffer of each of these sockets in bytes. Probes are one or two
// datagrams, and packets that are fragmented are at most 1,280 bytes long.
const ownSendBuffer = 256 << 10

// errNoProbeSocket is the error of a run with DontFragment that no socket of the group can send.
var errNoProbeSocket = errors.New("no socket for path MTU probes")

// listenTooBig starts to read ICMP errors for Config.TooBig. Without them, nothing would report that a packet with Don't Fragment was
// dropped, so fragments are permitted.
func (c *Config) listenTooBig() *toobig.Listener {
	if c.TooBig == nil {
		c.Fragments = true
		return nil
	}
	l, err := toobig.Listen(c.TooBig)
	if err != nil {
		c.Fragments = true
		if c.Log != nil {
			c.Log.Warn("reading ICMP errors failed, outer packets larger than the path MTU are fragmented until the interface goes down and up", "error", err)
		}
		return nil
	}
	return l
}

// SetFragments implements underlay.Port. After an error some sockets may have the new option.
func (p *Port) SetFragments(permitted bool) error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	p.opening.Lock()
	defer p.opening.Unlock()
	if p.closed.Load() || p.kept {
		return net.ErrClosed
	}
	permitted = permitted || p.tooBig == nil
	p.config.Fragments = permitted
	p.dontFragment.Store(!permitted)
	for fd := range p.dataSockets {
		if err := (&socket{fd: fd, family: p.family}).setFragments(permitted); err != nil {
			return err
		}
	}
	p.paths.forgetDatagrams()
	return nil
}

// RoutesChanged implements underlay.Port.
func (p *Port) RoutesChanged() { p.paths.forgetDatagrams() }

// setFragments lets the kernel fragment what exceeds the path MTU, and routers what exceeds theirs
// (over IPv4, like the kernel's WireGuard). Otherwise a socket sets DF, and ignores path MTUs that
// the kernel has learned from ICMP, which anybody can forge (RFC 8899, section 4.6). An IPv6
// socket also has the option of IPv4.
func (s *socket) setFragments(permitted bool) error {
	v4, v6 := unix.IP_PMTUDISC_PROBE, unix.IPV6_PMTUDISC_PROBE
	if permitted {
		v4, v6 = unix.IP_PMTUDISC_DONT, unix.IPV6_PMTUDISC_WANT
	}
	err := s.set(option{"IP_MTU_DISCOVER", unix.SOL_IP, unix.IP_MTU_DISCOVER, v4})
	if err != nil || s.family != unix.AF_INET6 {
		return err
	}
	return s.set(option{"IPV6_MTU_DISCOVER", unix.SOL_IPV6, unix.IPV6_MTU_DISCOVER, v6})
}

// configureOwn sets the options of a socket in the probe group or the fragment group. The size of IPv6 fragments is the minimum MTU: routers do
// not fragment, and not all of them report their MTU.
func (s *socket) configureOwn(group int) error {
	setSendBuffer(s.fd, ownSendBuffer)
	err := s.setFragments(group == fragmentGroup)
	if err != nil || group != fragmentGroup || s.family != unix.AF_INET6 {
		return err
	}
	return s.set(option{"IPV6_MTU", unix.SOL_IPV6, unix.IPV6_MTU, packet.IPv6MinMTU})
}

// openOwn opens the socket of a source in the probe group or the fragment group, unless it is open.
func (p *Port) openOwn(group, source int) error {
	if source < 0 || source >= p.sources.Len() {
		return underlay.ErrBadRun
	}
	if p.hasSocket(group, source) {
		return nil
	}
	p.opening.Lock()
	defer p.opening.Unlock()
	if p.closed.Load() || p.kept {
		return net.ErrClosed
	}
	if p.hasSocket(group, source) {
		return nil
	}
	g := p.groups[group].Load()
	if g == nil {
		g = new(sendGroup)
		p.groups[group].Store(g)
	}
	if err := p.addToGroup(g, group, source); err != nil {
		return fmt.Errorf("opening a socket with its own fragment option: %w", err)
	}
	p.noteOpened(1)
	return nil
}

func (p *Port) hasSocket(group, source int) bool {
	g := p.groups[group].Load()
	return g != nil && g.fds[source].Load() > 0
}

// openPause is the time after which a socket that could not be opened is tried again.
const openPause = 10 * time.Second

// openFragmentSocket opens the socket of a source in the fragment group soon: lanes do not wait for it. Until then, and while it fails,
// runs leave from the source's socket.
func (p *Port) openFragmentSocket(source int) {
	if !p.fragmentSockets[source].CompareAndSwap(false, true) {
		return
	}
	go func() {
		err := p.openOwn(fragmentGroup, source)
		if err == nil || errors.Is(err, net.ErrClosed) {
			return
		}
		if p.config.Log != nil {
			p.config.Log.Warn("opening the UDP socket for packets without Don't Fragment failed, retrying: large packets from this source port may be lost meanwhile",
				"source_port", p.sources.Port(source), "after", openPause, "error", err)
		}
		time.AfterFunc(openPause, func() { p.fragmentSockets[source].Store(false) })
	}()
}
