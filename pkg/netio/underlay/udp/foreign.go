// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"math/bits"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// noteOpened counts sockets that were opened after Open's, and looks for foreign ones after the
// 1st, 2nd, 4th, 8th and so on. The kernel lists all UDP sockets of the host, and a listing for
// each socket would take some hosts minutes. The caller holds p.opening.
func (p *Port) noteOpened(n int) {
	before := p.opened
	if p.opened += n; bits.Len(uint(before)) != bits.Len(uint(p.opened)) {
		p.reportForeign()
	}
}

// reportForeign logs each socket of another program at the port of a source. Such a socket takes
// datagrams. It can join while the owner has SO_REUSEPORT, so this follows such moments. Without
// udp_diag in the kernel it finds none. The caller holds p.opening, or is the only goroutine that
// knows p.
func (p *Port) reportForeign() {
	if p.config.Log == nil {
		return
	}
	ports := map[uint16]bool{}
	for i := range p.sources.Len() {
		ports[p.sources.Port(i)] = true
	}
	ours := p.inodes()
	for s := range p.listSockets {
		inode := uint64(s.INode)
		addr, _ := netip.AddrFromSlice(s.ID.Source)
		if s.Family == unix.AF_INET {
			addr = addr.Unmap()
		}
		if !ports[s.ID.SourcePort] || ours[inode] || p.foreign[inode] || isGroupAddress(addr) {
			continue
		}
		p.foreign[inode] = true
		p.config.Log.Error("another program has joined the listen port and takes datagrams from the tunnel, stop it (ss -ulpne lists its process)",
			"port", s.ID.SourcePort, "address", addr, "ifindex", s.ID.Interface, "uid", s.UID, "inode", inode)
	}
}

// inodes returns the inodes of all sockets of p that are bound to one of its ports.
func (p *Port) inodes() map[uint64]bool {
	set := map[uint64]bool{}
	add := func(fd int) bool {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) == nil {
			set[st.Ino] = true
		}
		return true
	}
	p.sockets(add)
	if p.holder >= 0 {
		add(p.holder)
	}
	return set
}

// isGroupAddress reports whether an address is one of groupAddress, which receives nothing. The
// groups of a process that is about to pass its sockets on also have such addresses.
func isGroupAddress(addr netip.Addr) bool {
	a := addr.Unmap()
	return a.Is4() && groupAddress(int(a.As4()[3])) == a
}

// eachBoundSocket yields the UDP sockets of the thread's network namespace. If the kernel cannot list them all, it yields a part.
func eachBoundSocket(yield func(*netlink.Socket) bool) {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		list, _ := netlink.SocketDiagUDP(family)
		for _, s := range list {
			if !yield(s) {
				return
			}
		}
	}
}
