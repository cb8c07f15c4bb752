// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestZeroUDPChecksumIsSentAsAllOnes sends datagrams whose computed checksum is 0. An IPv6 receiver drops a datagram with the
// checksum field 0 (RFC 8200 section 8.1). wireguard-go is left out, because its echo has that field 0.
func TestZeroUDPChecksumIsSentAsAllOnes(t *testing.T) {
	list := slices.DeleteFunc(pairings(), func(p pairing) bool { return p.right.name == wireguardGo.name })
	forPairings(t, list, func(t *testing.T, p pairing) {
		l := newLab(t, p, false)
		l.start(t)
		for _, x := range l.both() {
			serveEcho(t, x.host)
		}
		for _, x := range l.both() {
			to := netip.AddrPortFrom(l.other(x).inner(true), echoPort)
			expect.NoError(t, repeatExchange(x, to, retryInterval, patience, zeroChecksum))
		}
	})
}

// zeroChecksum returns a payload for which the checksum of c's IPv6 datagram is 0.
func zeroChecksum(c *net.UDPConn) []byte {
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
