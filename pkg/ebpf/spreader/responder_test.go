// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"crypto/ecdh"
	"encoding/binary"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"slices"

	"github.com/ropewalk/ropewalk/test/expect"
)

// Keys of the tests' tunnels.
var hereKey, thereKey = fixedKey(1), fixedKey(2)

func fixedKey(n byte) *ecdh.PrivateKey {
	k, err := ecdh.X25519().NewPrivateKey(slices.Repeat([]byte{n}, 32))
	if err != nil {
		panic(err)
	}
	return k
}

// secretsWith are those of a tunnel whose peer has that address.
func secretsWith(peer netip.Addr) ProbeSecrets {
	own, other := hereKey, thereKey
	if peer == hereAddr {
		own, other = thereKey, hereKey
	}
	return NewProbeSecrets([32]byte(own.Bytes()), [32]byte(other.PublicKey().Bytes()))
}

// answer answers a probe of here's, as there's gather program does. It reports whether the datagram is a probe.
func (r *rig) answer(c *net.UDPConn, datagram []byte, from netip.AddrPort) bool {
	r.Helper()
	if len(datagram) != 40 || string(datagram[:4]) != "rwp\x01" || datagram[5] != 1 {
		return false
	}
	_, key, _ := secretsWith(hereAddr).derive()
	if binary.LittleEndian.Uint64(datagram[32:]) != sipHash(key, datagram[:32]) {
		r.Fatalf("a probe with another key: %x", datagram)
	}
	reply := slices.Clone(datagram)
	reply[5] = 2
	binary.LittleEndian.PutUint64(reply[32:], sipHash(key, reply[:32]))
	_, err := c.WriteToUDPAddrPort(reply, netip.AddrPortFrom(from.Addr(), port))
	expect.NoError(r, err)
	return true
}

// sipHash is SipHash-2-4 of 32 bytes.
func sipHash(key [16]byte, b []byte) uint64 {
	k0, k1 := binary.LittleEndian.Uint64(key[:]), binary.LittleEndian.Uint64(key[8:])
	v0, v1, v2, v3 := k0^0x736f6d6570736575, k1^0x646f72616e646f6d, k0^0x6c7967656e657261, k1^0x7465646279746573
	rounds := func(n int) {
		for range n {
			v0, v2 = v0+v1, v2+v3
			v1, v3 = bits.RotateLeft64(v1, 13)^v0, bits.RotateLeft64(v3, 16)^v2
			v0 = bits.RotateLeft64(v0, 32)
			v2, v0 = v2+v1, v0+v3
			v1, v3 = bits.RotateLeft64(v1, 17)^v2, bits.RotateLeft64(v3, 21)^v0
			v2 = bits.RotateLeft64(v2, 32)
		}
	}
	for i := 0; i <= 32; i += 8 {
		m := uint64(32) << 56
		if i < 32 {
			m = binary.LittleEndian.Uint64(b[i:])
		}
		v3 ^= m
		rounds(2)
		v0 ^= m
	}
	v2 ^= 0xff
	rounds(4)
	return v0 ^ v1 ^ v2 ^ v3
}

// awaitGathered sends messages until there's gather program has had a probe from each source port in use, and all come from the listen port.
func (r *rig) awaitGathered(senders []*net.UDPConn, receiver *net.UDPConn) {
	r.Helper()
	expect.Eventually(r, "all flows are gathered", func() bool {
		for range 64 / 3 {
			r.sources(senders, receiver)
		}
		for _, ports := range r.sources(senders, receiver) {
			if !ports[port] || len(ports) != 1 {
				return false
			}
		}
		return true
	})
}

// prove sends messages from here until each peer's source ports are proved. It returns their number.
func (r *rig) prove(senders []*net.UDPConn, receiver *net.UDPConn) (sent uint64) {
	r.Helper()
	to := netip.AddrPortFrom(r.there.addr, port)
	expect.EventuallyNoError(r, "the source ports are proved", func() error {
		for n := range 64 * 16 {
			c := senders[n%len(senders)]
			_, err := c.WriteToUDPAddrPort(message(n%len(senders), n), to)
			expect.NoError(r, err)
			r.receive(receiver)
			sent++
		}
		p := r.here.status().Tunnels[0].Peers[0]
		if !p.Ready || len(p.Blocked) > 0 {
			return fmt.Errorf("the status is %+v", p)
		}
		return nil
	})
	return sent
}
