// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"golang.org/x/crypto/blake2s"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// These tests mix data messages with handshake messages, valid ones and others. Two implementations must deliver the same packets and answer the
// same messages. Each valid initiation is of a peer of its own, since a peer that initiates twice within 20 ms is not answered.

// guestPeers is the number of peers that only shake hands. The last one does so at the end.
const guestPeers = 8

// firstSender is the sender index of the first initiation of guests. That of the session's own is smaller.
const firstSender = 1000

// maxHandshakes bounds the handshake messages of a script. When 128 wait for wireguard-go's workers, it is under load and answers with cookies
// (IsUnderLoad).
const maxHandshakes = 100

// guests are peers of a device under test that have no allowed IPs.
type guests struct {
	device  noise.PublicKey
	host    noise.PrivateKey // of the peer with the session
	keys    []noise.PrivateKey
	began   time.Time
	used    int      // guests that have sent a valid initiation
	sent    [][]byte // all messages
	answers []uint32 // receiver indexes of responses
}

func newGuests(tb testing.TB, n int) *guests {
	tb.Helper()
	g := &guests{began: time.Now()}
	for range n {
		key, err := noise.NewPrivateKey(rand.Reader)
		if err != nil {
			tb.Fatal(err)
		}
		g.keys = append(g.keys, key)
	}
	return g
}

// initiation returns a valid initiation from the holder of a key, changed by f before its mac1 is computed.
func (g *guests) initiation(tb testing.TB, key noise.PrivateKey, now time.Time, f func(*wire.Initiation)) []byte {
	tb.Helper()
	id, err := noise.NewIdentity(key)
	if err != nil {
		tb.Fatal(err)
	}
	far, err := noise.NewRemote(id, g.device)
	if err != nil {
		tb.Fatal(err)
	}
	msg := new(wire.Initiation)
	if err := noise.NewInitiator(far).CreateInitiation(msg, firstSender+uint32(len(g.sent)), noise.NewTimestamp(now), rand.Reader); err != nil {
		tb.Fatal(err)
	}
	f(msg)
	if err := noise.NewCookieJar(far).AddMACs(msg[:], 0); err != nil {
		tb.Fatal(err)
	}
	return msg[:]
}

// addMAC1 computes the mac1 of an initiation whose type AddMACs does not know (paper §5.4.4).
func (g *guests) addMAC1(tb testing.TB, b []byte) []byte {
	tb.Helper()
	key := blake2s.Sum256(append([]byte("mac1----"), g.device[:]...))
	mac, err := blake2s.New128(key[:])
	if err != nil {
		tb.Fatal(err)
	}
	_, _ = mac.Write(b[:mac1At])
	copy(b[mac1At:mac2At], mac.Sum(nil))
	return b
}

// next returns an initiation of the next guest, who stays the next one.
func (g *guests) next(tb testing.TB, f func(*wire.Initiation)) []byte {
	return g.initiation(tb, g.keys[g.used], g.began, f)
}

func unchanged(*wire.Initiation) {}

// Offsets in an initiation (paper §5.4.2).
const (
	ephemeralAt = 8
	mac1At      = 116
	mac2At      = 132
)

// handshakeActions are the kinds of handshake messages. Only the first one is answered.
var handshakeActions = []func(testing.TB, *guests, int) []byte{
	func(tb testing.TB, g *guests, _ int) []byte { // valid, except that the last guest waits for the end
		b := g.next(tb, unchanged)
		if g.used == len(g.keys)-1 {
			b[mac1At] ^= 1
			return b
		}
		g.used++
		return b
	},
	func(tb testing.TB, g *guests, n int) []byte { // a bad mac1
		b := g.next(tb, unchanged)
		b[mac1At+n/8%16] ^= 1 << (n % 8)
		return b
	},
	func(tb testing.TB, g *guests, n int) []byte { // reserved bytes, under a correct mac1
		b := g.next(tb, unchanged)
		b[1+n%3] = byte(n | 1)
		return g.addMAC1(tb, b)
	},
	func(tb testing.TB, g *guests, n int) []byte { // cut
		return g.next(tb, unchanged)[:1+n%(wire.InitiationSize-1)]
	},
	func(tb testing.TB, g *guests, n int) []byte { // extended
		return append(g.next(tb, unchanged), make([]byte, 1+n)...)
	},
	func(tb testing.TB, g *guests, n int) []byte { // repeated
		if len(g.sent) == 0 {
			return g.next(tb, unchanged)[:1]
		}
		return g.sent[n%len(g.sent)]
	},
	func(tb testing.TB, g *guests, _ int) []byte { // from an unknown key
		return g.initiation(tb, newGuests(tb, 1).keys[0], g.began, unchanged)
	},
	func(tb testing.TB, g *guests, n int) []byte { // a bit of the ephemeral key, the static key or the timestamp
		return g.next(tb, func(msg *wire.Initiation) { msg[ephemeralAt+n%(mac1At-ephemeralAt)] ^= 1 << (n % 8) })
	},
	func(tb testing.TB, g *guests, n int) []byte { // an old timestamp of the peer with the session
		return g.initiation(tb, g.host, g.began.Add(-time.Hour*time.Duration(n)-time.Minute), unchanged)
	},
	func(tb testing.TB, g *guests, n int) []byte { // a response to nobody
		b := bytes.Repeat([]byte{byte(n)}, wire.ResponseSize)
		binary.LittleEndian.PutUint32(b, uint32(wire.TypeResponse))
		return b
	},
	func(_ testing.TB, _ *guests, n int) []byte { // a cookie reply to nobody
		b := bytes.Repeat([]byte{byte(n)}, wire.CookieReplySize)
		binary.LittleEndian.PutUint32(b, uint32(wire.TypeCookieReply))
		return b
	},
	func(tb testing.TB, g *guests, n int) []byte { // a type that does not exist
		b := g.next(tb, unchanged)
		b[0] = byte(wire.TypeData) + 1 + byte(n%250)
		return b
	},
	func(tb testing.TB, g *guests, n int) []byte { // a mac2 without a cookie, which counts only under load
		b := g.next(tb, unchanged)
		b[mac2At+n%16] = byte(n | 1)
		b[mac1At] ^= 1
		return b
	},
}

// shake sends a handshake message of a kind.
func (d *decider) shake(tb testing.TB, action, n int) {
	tb.Helper()
	b := handshakeActions[action%len(handshakeActions)](tb, d.guests, n)
	d.guests.sent = append(d.guests.sent, b)
	putAll(d.net.network, [][]element{{{data: b, segSize: len(b)}}})
}

// answered returns the sorted receiver indexes of the responses so far.
func (d *decider) answered() []uint32 {
	for {
		select {
		case b := <-d.net.out.handshake:
			if h, reason := wire.Classify(b); reason == drop.None && h == wire.TypeResponse {
				if to := binary.LittleEndian.Uint32(b[8:]); to >= firstSender {
					d.guests.answers = append(d.guests.answers, to)
				}
			}
		default:
			slices.Sort(d.guests.answers)
			return d.guests.answers
		}
	}
}

// compareAnswers gives messages made of arbitrary bytes to both implementations. Both must deliver the same packets and answer the same messages.
func compareAnswers(t *testing.T, ours, theirs implementation, b []byte) {
	t.Helper()
	s, deadline := &script{rest: b}, inputDeadline()
	a, c := newDecider(t, ours, guestPeers), newDecider(t, theirs, guestPeers)
	for range maxMessages {
		if len(s.rest) == 0 || len(a.guests.sent) == maxHandshakes {
			break
		}
		if s.byte()%2 == 0 {
			m := s.step()
			a.send(m)
			c.send(m)
			continue
		}
		action, n := s.byte(), s.byte()
		a.shake(t, action, n)
		c.shake(t, action, n)
	}
	last := &message{counter: s.next, plain: numbered(maxMessages), flip: -1}
	for _, d := range []*decider{a, c} {
		d.send(last)
		d.guests.used = guestPeers - 1
		b := d.guests.next(t, unchanged)
		putAll(d.net.network, [][]element{{{data: b, segSize: len(b)}}})
	}
	wantSameDecisions(t, a, c, last.plain, deadline)
	wantSameAnswers(t, a, c, deadline)
}

// wantSameAnswers waits until both have answered the last message and the same messages in all.
func wantSameAnswers(t *testing.T, a, b *decider, deadline time.Time) {
	t.Helper()
	last := firstSender + uint32(len(a.guests.sent))
	for {
		// wireguard-go (ConsumeMessageInitiation) and the kernel (wg_noise_handshake_consume_initiation) release the lock between comparing a
		// timestamp and storing it. So two workers may accept an initiation and its copy, and answer both.
		x, y := a.answered(), slices.Compact(slices.Clone(b.answered()))
		if slices.Equal(x, y) && slices.Contains(x, last) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s answered the initiations of %v, %s those of %v, and the last one is of %d", a.name, x, b.name, y, last)
		}
		time.Sleep(time.Millisecond)
	}
}

// answerSeeds are scripts with each kind of handshake message and of data message.
func answerSeeds() (seeds [][]byte) {
	for i := range handshakeActions {
		seeds = append(seeds, bytes.Repeat([]byte{1, byte(i), 17, 0, 0, 1, byte(i), 200, 1, 0, 0, 0, byte(i), 17, byte(i)}, 5))
	}
	for i := range actions {
		seeds = append(seeds, bytes.Repeat([]byte{0, 0, 0, byte(i), 17, byte(i), 1, byte(i), 5}, 12))
	}
	seeds = append(seeds, slices.Concat([]byte{1, 0, 0}, bytes.Repeat([]byte{1, 5, 0}, maxMessages))) // an initiation and many copies
	return seeds
}

func FuzzSameAnswers(f *testing.F) {
	for _, seed := range answerSeeds() {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, b []byte) { compareAnswers(t, implementations[0], implementations[2], b) })
}
