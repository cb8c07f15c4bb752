// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/packet"
)

// TestSendsAllOnesForAUDPChecksumOfZero sends datagrams whose checksum comes out as 0. An IPv6 receiver drops those that
// really carry a 0 (RFC 8200 section 8.1). wireguard-go is left out: its echo does carry a 0.
func TestSendsAllOnesForAUDPChecksumOfZero(t *testing.T) {
	list := slices.DeleteFunc(pairings(), func(p pairing) bool { return p.right.name == wireguardGo.name })
	forPairings(t, list, func(t *testing.T, p pairing) {
		l := newLab(t, p, false)
		l.start(t)
		for _, x := range l.both() {
			serveEcho(t, x.host)
		}
		for _, x := range l.both() {
			to := netip.AddrPortFrom(l.other(x).inner(true), echoPort)
			must(t, repeatExchange(x, to, again, patience, zeroSum))
		}
	})
}

// zeroSum returns a payload that makes the checksum of its datagram, as c sends it over IPv6, 0.
func zeroSum(c *net.UDPConn) []byte {
	from := c.LocalAddr().(*net.UDPAddr).AddrPort()
	to := c.RemoteAddr().(*net.UDPAddr).AddrPort()
	const length = 8 + 2
	source, destination := from.Addr().As16(), to.Addr().As16()
	b := append(source[:], destination[:]...)
	for _, word := range []uint16{from.Port(), to.Port(), length} {
		b = binary.BigEndian.AppendUint16(b, word)
	}
	return binary.BigEndian.AppendUint16(nil, ^packet.Fold(packet.Sum(b, unix.IPPROTO_UDP+length)))
}
