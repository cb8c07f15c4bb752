// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"bytes"
	"crypto/cipher"
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/chacha20poly1305"

	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// decider is a device under test with a session, and what it delivered.
type decider struct {
	implementation
	net  *memoryNet
	aead cipher.AEAD // of messages to the device
	id   uint32      // the receiver index of these

	guests *guests
	mu     sync.Mutex
	got    [][]byte
}

// newDecider starts a device with a session, and more peers.
func newDecider(tb testing.TB, i implementation, more int) *decider {
	tb.Helper()
	ours, theirs := newEndConfigs(tb)
	d := &decider{implementation: i, net: newMemoryNet(1), guests: newGuests(tb, more)}
	d.guests.device, d.guests.host = theirs.peerKey, theirs.key
	for _, key := range d.guests.keys {
		ours.others = append(ours.others, key.Public())
	}
	d.net.received.inspector = d.deliver
	i.start(tb, d.net, ours)
	r := newRemote(tb, d.net, theirs)
	aead, err := chacha20poly1305.New(r.secrets.Send[:])
	if err != nil {
		tb.Fatal(err)
	}
	d.aead, d.id = aead, r.secrets.Remote
	return d
}

func (d *decider) deliver(parts [][]byte) {
	element := bytes.Join(parts, nil)
	packets := [][]byte{element}
	if d.vnetHeader {
		packets, _ = flow.Packets(element)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.got = append(d.got, packets...)
}

// delivered returns a sorted copy of the packets that the device wrote to its TUN so far.
func (d *decider) delivered() [][]byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := slices.Clone(d.got)
	slices.SortFunc(all, bytes.Compare)
	return all
}

// message is a data message before it is sealed, and what happens to it afterwards.
type message struct {
	counter uint64
	plain   []byte
	index   uint32 // differs from the session's in these bits
	flip    int    // the bit that is flipped, -1 for none
	cut     int    // bytes cut off, negative for bytes appended
}

// send seals the message for the device and puts it into its network.
func (d *decider) send(m *message) {
	b := make([]byte, wire.DataHeaderLen, wire.DataHeaderLen+len(m.plain)+chacha20poly1305.Overhead+256)
	wire.PutDataHeader(b, d.id^m.index, m.counter)
	var nonce [chacha20poly1305.NonceSize]byte
	binary.LittleEndian.PutUint64(nonce[4:], m.counter)
	b = d.aead.Seal(b, nonce[:], m.plain, nil)
	if m.flip >= 0 {
		bit := m.flip % (8 * len(b))
		b[bit/8] ^= 1 << (bit % 8)
	}
	b = b[:max(len(b)-m.cut, 1)]
	putAll(d.net.network, [][]element{{{data: b, segSize: len(b)}}})
}

// script turns arbitrary bytes into messages.
type script struct {
	rest []byte
	next uint64 // counter
	sent []*message
}

func (s *script) byte() int {
	if len(s.rest) == 0 {
		return 0
	}
	b := s.rest[0]
	s.rest = s.rest[1:]
	return int(b)
}

func (s *script) word() int { return s.byte()<<8 | s.byte() }

// actions are the kinds of messages.
var actions = []func(*script, *message){
	func(*script, *message) {}, // a valid message
	func(s *script, m *message) { m.counter += uint64(s.word()); s.next = m.counter + 1 },
	func(s *script, m *message) { m.counter -= min(m.counter, uint64(s.word()%wireguardGoWindow)) },
	func(s *script, m *message) { *m = *s.sent[s.byte()%len(s.sent)] },
	func(s *script, m *message) { m.flip = s.word() },
	func(s *script, m *message) { m.cut = s.byte() },
	func(s *script, m *message) { m.cut = -s.byte() },
	func(s *script, m *message) { m.plain[15] = byte(s.byte()) }, // source address
	func(s *script, m *message) { m.plain = nil },
	func(s *script, m *message) {
		m.plain = append(m.plain, bytes.Repeat([]byte{byte(s.byte())}, s.byte())...)
	},
	func(s *script, m *message) { binary.BigEndian.PutUint16(m.plain[2:], uint16(s.word())) },     // total length
	func(s *script, m *message) { m.plain[1+s.byte()%(packet.IPv4HeaderLen-1)] = byte(s.byte()) }, // wireguard-go passes bad header lengths
	func(s *script, m *message) { m.plain = m.plain[:s.byte()%len(m.plain)] },
	func(s *script, m *message) { m.index = uint32(s.word()) },
	func(s *script, m *message) { m.plain = numbered6(m.plain, s.byte()) },
	func(s *script, m *message) {
		if n := s.byte(); n%2 == 0 {
			m.counter |= 1<<63 | 1<<32 // bit 62 is that of streams, and stays 0 although later counters may be smaller
			s.next = m.counter + 1
		} else {
			m.counter = math.MaxUint64 - uint64(n) // of no session: see session.RejectAfterMessages
		}
	},
}

// step returns the next message.
func (s *script) step() *message {
	m := &message{counter: s.next, plain: numbered(len(s.sent)), flip: -1}
	s.next++
	action := s.byte() % len(actions)
	if len(s.sent) > 0 || action != 3 {
		actions[action](s, m)
	}
	s.sent = append(s.sent, m)
	return m
}

// numbered returns an IPv4 packet from the peer with a number in it. Its protocol, for experiments (RFC 3692), is never merged.
func numbered(n int) []byte {
	p := make([]byte, packet.IPv4HeaderLen, packet.IPv4HeaderLen+20)
	p = fmt.Appendf(p, "packet %d", n)
	p[0], p[8], p[9] = 0x45, 64, 253
	binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
	copy(p[12:], []byte{10, 0, 0, 2, 10, 0, 0, 1})
	return p
}

// numbered6 returns an IPv6 packet around a numbered one, from the peer if n is even. Its header says that n bytes follow.
func numbered6(p []byte, n int) []byte {
	h := make([]byte, packet.IPv6HeaderLen)
	h[0], h[5], h[6], h[7] = 0x60, byte(n), 253, 64
	copy(h[8:], netip.MustParseAddr("fd00::2").AsSlice())
	copy(h[24:], netip.MustParseAddr("fd00::1").AsSlice())
	h[23] += byte(n % 2)
	return append(h, p...)
}

// wireguardGoWindow is the distance behind the newest counter up to which wireguard-go accepts a counter. Ropewalk's window is larger.
const wireguardGoWindow = 8128

// maxMessages bounds a script.
const maxMessages = 200

// FuzzSameDecision sends the same sequence of data messages, valid, replayed, late, damaged and with strange contents, to ropewalk
// and to wireguard-go. Both must deliver the same packets.
func FuzzSameDecision(f *testing.F) {
	for i := range actions {
		f.Add(bytes.Repeat([]byte{0, byte(i), 17, byte(i), 3}, 20))
	}
	f.Add([]byte{0, 1, 0x1f, 0xc0, 2, 0x1f, 0xbe, 2, 0x1f, 0xbf, 2, 0, 1}) // at the window's end
	f.Add([]byte{0, 1, 0xff, 0xff, 1, 0xff, 0xff, 2, 0x1f, 0xc0, 3, 0, 3, 1, 3, 2, 3, 3})
	f.Add([]byte{15, 0, 2, 0x1f, 0xbe, 2, 0x1f, 0xbf})                                                                 // behind the first of the largest counters
	f.Add([]byte{0, 14, 20, 14, 28, 14, 27, 14, 40, 14, 0, 15, 1, 15, 2, 0, 15, 255, 2, 0, 1, 3, 2, 0, 15, 4, 14, 28}) // IPv6, and the largest counters
	f.Fuzz(func(t *testing.T, b []byte) {
		s, deadline := &script{rest: b}, inputDeadline()
		ours, theirs := newDecider(t, implementations[0], 0), newDecider(t, implementations[2], 0)
		for range maxMessages {
			if len(s.rest) == 0 {
				break
			}
			m := s.step()
			ours.send(m)
			theirs.send(m)
		}
		last := &message{counter: s.next, plain: numbered(maxMessages), flip: -1}
		ours.send(last)
		theirs.send(last)
		wantSameDecisions(t, ours, theirs, last.plain, deadline)
	})
}

// wantSameDecisions waits until both have delivered the last packet and the same packets in all.
func wantSameDecisions(t *testing.T, ours, theirs *decider, last []byte, deadline time.Time) {
	t.Helper()
	for {
		a, b := ours.delivered(), theirs.delivered()
		if slices.EqualFunc(a, b, bytes.Equal) && slices.ContainsFunc(a, func(p []byte) bool { return bytes.Equal(p, last) }) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s delivered %q\n%s %q", ours.name, a, theirs.name, b)
		}
		time.Sleep(time.Millisecond)
	}
}
