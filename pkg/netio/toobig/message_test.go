// SPDX-License-Identifier: Apache-2.0

package toobig

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

var payload = []byte("the header of a data message")

// message4 returns Fragmentation Needed with an MTU of 1400 for a packet of 1500 bytes.
func message4() []byte {
	b := make([]byte, icmpHeaderLen+packet.IPv4HeaderLen+packet.UDPHeaderLen)
	b[0], b[1] = typeUnreachable4, codeFragmentationNeed4
	binary.BigEndian.PutUint16(b[6:], 1400)
	ip := b[icmpHeaderLen:]
	ip[0], ip[9] = 0x45, byte(packet.UDP)
	binary.BigEndian.PutUint16(ip[2:], 1500)
	copy(ip[12:], []byte{192, 0, 2, 1, 192, 0, 2, 2})
	binary.BigEndian.PutUint16(ip[20:], 51820)
	binary.BigEndian.PutUint16(ip[22:], 51821)
	return append(b, payload...)
}

// message6 is message4 over IPv6.
func message6() []byte {
	b := make([]byte, icmpHeaderLen+packet.IPv6HeaderLen+packet.UDPHeaderLen)
	b[0] = typeTooBig6
	binary.BigEndian.PutUint32(b[4:], 1400)
	ip := b[icmpHeaderLen:]
	ip[0], ip[6] = 0x60, byte(packet.UDP)
	binary.BigEndian.PutUint16(ip[4:], 1460)
	src, dst := netip.MustParseAddr("2001:db8::1").As16(), netip.MustParseAddr("2001:db8::2").As16()
	copy(ip[8:], src[:])
	copy(ip[24:], dst[:])
	binary.BigEndian.PutUint16(ip[40:], 51820)
	binary.BigEndian.PutUint16(ip[42:], 51821)
	return append(b, payload...)
}

func TestMessagesAreParsed(t *testing.T) {
	for _, tt := range []struct {
		from, to string
		message  []byte
		parse    func([]byte, *Message) bool
	}{
		{"192.0.2.1:51820", "192.0.2.2:51821", message4(), parse4},
		{"[2001:db8::1]:51820", "[2001:db8::2]:51821", message6(), parse6},
	} {
		var m Message
		ok := tt.parse(tt.message, &m)
		if !ok || m.MTU != 1400 || m.Size != 1500 || m.From.String() != tt.from || m.To.String() != tt.to || !bytes.Equal(m.Payload, payload) {
			t.Errorf("got %+v, %v", m, ok)
		}
		quoted := len(tt.message) - len(payload)
		for n := range tt.message {
			if ok := tt.parse(tt.message[:n], &m); ok != (n >= quoted) {
				t.Errorf("%s: the first %d bytes: got %v", tt.to, n, ok)
			}
		}
	}
}

func TestOtherMessagesAreIgnored(t *testing.T) {
	var m Message
	for at, value := range map[int]byte{0: 11, 1: 1, icmpHeaderLen: 0x65, icmpHeaderLen + 9: 6, icmpHeaderLen + 7: 1} {
		b := message4()
		if b[at] = value; parse4(b, &m) {
			t.Errorf("IPv4, %d in byte %d: got %+v", value, at, m)
		}
	}
	for at, value := range map[int]byte{0: 1, icmpHeaderLen: 0x45, icmpHeaderLen + 6: 58} {
		b := message6()
		if b[at] = value; parse6(b, &m) {
			t.Errorf("IPv6, %d in byte %d: got %+v", value, at, m)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(message4())
	f.Add(message6())
	f.Fuzz(func(t *testing.T, b []byte) {
		var m Message
		if parse4(b, &m) && !m.To.Addr().Is4() {
			t.Errorf("got %+v of IPv4", m)
		}
		if parse6(b, &m) && !m.To.Addr().Is6() {
			t.Errorf("got %+v of IPv6", m)
		}
	})
}
