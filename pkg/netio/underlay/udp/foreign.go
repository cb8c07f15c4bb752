// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"encoding/binary"
	"iter"
	"math/bits"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// boundSocket is a UDP socket of any process, as udp_diag describes it.
type boundSocket struct {
	addr  netip.AddrPort
	link  uint32 // interface index of SO_BINDTODEVICE, 0 for none
	uid   uint32
	inode uint64
}

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
	ports, only := map[uint16]bool{}, uint16(0)
	for i := range p.sources.Len() {
		ports[p.sources.Port(i)] = true
	}
	if len(ports) == 1 {
		only = p.sources.Port(0)
	}
	ours := p.inodes()
	for s := range p.listSockets(only) {
		if !ports[s.addr.Port()] || ours[s.inode] || p.foreign[s.inode] || isGroupAddress(s.addr.Addr()) {
			continue
		}
		p.foreign[s.inode] = true
		p.config.Log.Error("another program has joined the listen port and takes datagrams from the tunnel, stop it (ss -ulpne lists its process)",
			"port", s.addr.Port(), "address", s.addr.Addr(), "ifindex", s.link, "uid", s.uid, "inode", s.inode)
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

// struct inet_diag_req_v2 and struct inet_diag_msg (linux/inet_diag.h).
const (
	diagRequestLen   = 56
	diagRequestPort  = 8
	diagMessageLen   = 72
	diagMessagePort  = 4
	diagMessageAddr  = 8
	diagMessageLink  = 40
	diagMessageUID   = 64
	diagMessageInode = 68
)

// eachBoundSocket yields the UDP sockets of the thread's network namespace at a port, or at all ports for 0.
func eachBoundSocket(port uint16) iter.Seq[boundSocket] {
	return func(yield func(boundSocket) bool) {
		for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
			request := append([]byte{family, unix.IPPROTO_UDP, 0, 0, 0xff, 0xff, 0xff, 0xff}, make([]byte, diagRequestLen-diagRequestPort)...)
			binary.BigEndian.PutUint16(request[diagRequestPort:], port)
			req := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
			req.AddRawData(request)
			messages, _ := req.Execute(unix.NETLINK_INET_DIAG, nl.SOCK_DIAG_BY_FAMILY)
			for _, m := range messages {
				if len(m) >= diagMessageLen && !yield(parseDiag(m)) {
					return
				}
			}
		}
	}
}

// parseDiag reads a message of diagMessageLen bytes.
func parseDiag(m []byte) boundSocket {
	addr := netip.AddrFrom16([16]byte(m[diagMessageAddr:]))
	if m[0] == unix.AF_INET {
		addr = netip.AddrFrom4([4]byte(m[diagMessageAddr:]))
	}
	native := binary.NativeEndian
	return boundSocket{
		netip.AddrPortFrom(addr, binary.BigEndian.Uint16(m[diagMessagePort:])), native.Uint32(m[diagMessageLink:]),
		native.Uint32(m[diagMessageUID:]), uint64(native.Uint32(m[diagMessageInode:])),
	}
}
