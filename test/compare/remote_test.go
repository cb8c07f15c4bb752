// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"crypto/rand"
	"net/netip"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/test/expect"
)

// mtu of all TUNs. It fits packets of 1440 bytes, a multiple of 16, of which one UDP GSO send fits 44.
const mtu = 1500

// endConfig is the configuration of one end of a tunnel.
type endConfig struct {
	key     noise.PrivateKey
	peerKey noise.PublicKey
	peer    netip.AddrPort    // the peer's endpoint
	allowed []netip.Prefix    // the peer's allowed IPs, IPv4 first
	others  []noise.PublicKey // peers without endpoint and allowed IPs
}

// newEndConfigs returns the configurations of both ends. Our inner addresses are 10.0.0.1 and fd00::1, theirs 10.0.0.2 and fd00::2.
func newEndConfigs(tb testing.TB) (ours, theirs endConfig) {
	tb.Helper()
	for _, s := range []*endConfig{&ours, &theirs} {
		key, err := noise.NewPrivateKey(rand.Reader)
		if err != nil {
			tb.Fatal(err)
		}
		s.key = key
	}
	ours.peerKey, theirs.peerKey = theirs.key.Public(), ours.key.Public()
	ours.peer, theirs.peer = netip.MustParseAddrPort("192.0.2.2:51820"), netip.MustParseAddrPort("192.0.2.1:51820")
	ours.allowed = []netip.Prefix{netip.MustParsePrefix("10.0.0.2/32"), netip.MustParsePrefix("fd00::2/128")}
	theirs.allowed = []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32"), netip.MustParsePrefix("fd00::1/128")}
	return ours, theirs
}

// remote is the peer of a device under test. It seals and opens packets on request.
type remote struct {
	tb      testing.TB
	keys    *session.Keypair
	secrets noise.Keys // of the same session
	scratch session.Scratch
}

// newRemote performs a handshake with the device of e, as the initiator.
func newRemote(tb testing.TB, e *memoryNet, s endConfig) *remote {
	tb.Helper()
	id, err := noise.NewIdentity(s.key)
	if err != nil {
		tb.Fatal(err)
	}
	far, err := noise.NewRemote(id, s.peerKey)
	if err != nil {
		tb.Fatal(err)
	}
	r := &remote{tb: tb}
	expect.Eventually(tb, "the handshake is answered", func() bool {
		r.tryHandshake(e, far)
		return r.keys != nil
	})
	return r
}

// handshakeRetry is the time after which an unanswered handshake is tried again. A device that was just started may not be ready.
const handshakeRetry = time.Second

// tryHandshake makes one attempt at a handshake.
func (r *remote) tryHandshake(e *memoryNet, far *noise.Remote) {
	initiator, msg := noise.NewInitiator(far), new(wire.Initiation)
	if err := initiator.CreateInitiation(msg, 1, noise.NewTimestamp(time.Now()), rand.Reader); err != nil {
		r.tb.Fatal(err)
	}
	if err := noise.NewCookieJar(far).AddMACs(msg[:], 0); err != nil {
		r.tb.Fatal(err)
	}
	putAll(e.network[:1], [][]element{{{data: msg[:], segSize: len(msg)}}})
	timeout := time.After(handshakeRetry)
	for r.keys == nil {
		select {
		case response := <-e.out.handshake:
			r.finish(initiator, response)
		case <-timeout:
			return
		}
	}
}

// finish handles the response to the initiation. It ignores other messages.
func (r *remote) finish(i *noise.Initiator, response []byte) {
	keys, reason := i.ConsumeResponse(response, new(noise.PresharedKey))
	if reason != drop.None {
		return
	}
	r.secrets = keys
	k, err := session.NewKeypair(&keys, 0)
	if err != nil {
		r.tb.Fatal(err)
	}
	r.keys = k
}

// seal writes messages with these packets, which have the same size, to dst, and returns them with their stride.
func (r *remote) seal(dst []byte, packets [][]byte) (run []byte, stride int) {
	size := len(packets[0])
	l := session.NewLayout(len(packets), size, size, mtu)
	for i, p := range packets {
		copy(dst[i*l.Stride()+wire.DataHeaderLen:], p)
	}
	counter, ok := r.keys.Reserve(l.Segments)
	if !ok || r.keys.SealTrain(&r.scratch, dst, l, counter) != l.Size() {
		r.tb.Fatal("the remote cannot seal")
	}
	return dst[:l.Size()], l.Stride()
}

// open returns the packet in one message.
func (r *remote) open(msg []byte) []byte {
	out := make([]session.Message, 1)
	r.keys.OpenTrain(&r.scratch, 0, msg, len(msg), out)
	if out[0].Drop != drop.None {
		r.tb.Errorf("a message of %d bytes does not open: got %v, want %v", len(msg), out[0].Drop, drop.None)
	}
	return out[0].Padded
}

// putAll puts elements into each queue, by reference.
func putAll(to []*queue, elements [][]element) {
	for i, q := range to {
		q.put(len(elements[i]), func(k int, p *element) { p.data, p.segSize = elements[i][k].data, elements[i][k].segSize })
	}
}
