// SPDX-License-Identifier: Apache-2.0

package noise

import (
	"crypto/ecdh"
	"fmt"
	"io"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// Initiator is the initiating side of handshakes with one peer, at most one of them in flight. It is not safe for
// concurrent use.
type Initiator struct {
	hidden
	remote    *Remote
	state     symmetric
	ephemeral *ecdh.PrivateKey // nil while none is in flight
	sender    uint32
}

// NewInitiator returns an Initiator with no handshake in flight.
func NewInitiator(remote *Remote) *Initiator { return &Initiator{remote: remote} }

// CreateInitiation writes the first message (paper §5.4.2) with our index sender, and with zero MACs, which CookieJar.AddMACs fills in. It
// replaces a handshake in flight. now must be later than in all initiations before it to this peer. rand must be good: 32 of its bytes
// become the ephemeral private key. On error, which only rand can cause, no handshake is in flight.
func (i *Initiator) CreateInitiation(msg *wire.Initiation, sender uint32, now Timestamp, rand io.Reader) error {
	i.Wipe()
	ephemeral, err := newEphemeral(rand)
	if err != nil {
		return fmt.Errorf("creating an ephemeral key: %w", err)
	}
	*msg = wire.Initiation{}
	msg.SetHeader(sender)
	copy(msg.Ephemeral()[:], ephemeral.PublicKey().Bytes())
	state := i.remote.start
	defer func() { state = symmetric{} }()
	state.mixEphemeral(msg.Ephemeral())

	var shared [KeySize]byte
	defer clear(shared[:])
	if !exchange(&shared, ephemeral, (*[KeySize]byte)(&i.remote.public)) {
		return fmt.Errorf("the peer's public key is invalid: %w", ErrLowOrder)
	}
	key := state.mixKeyForCipher(shared[:])
	state.seal(msg.Static(), &key, i.remote.local.public[:])
	key = state.mixKeyForCipher(i.remote.shared[:])
	state.seal(msg.Timestamp(), &key, now[:])
	clear(key[:])

	i.state, i.ephemeral, i.sender = state, ephemeral, sender
	return nil
}

// ConsumeResponse takes the second message (paper §5.4.3) and returns the session's keys. psks are the preshared keys that the peer
// may have used, in the order of trial; the zero key stands for none. Keys.Preshared tells which one fits. Each costs a few hashes: the
// Diffie-Hellman results are computed once. It does not check the MACs: call CookieChecker.Check first.
//
// On success the handshake is over and its state wiped. A message that is no response to the
// handshake in flight is rejected with HSInvalid (or with Classify's reasons). The handshake stays
// as it was, so that a forged response cannot end it.
func (i *Initiator) ConsumeResponse(b []byte, psks ...*PresharedKey) (Keys, drop.Reason) {
	msg, reason := wire.AsResponse(b)
	if reason != drop.None {
		return Keys{}, reason
	}
	if i.ephemeral == nil || msg.Receiver() != i.sender {
		return Keys{}, drop.HSInvalid
	}
	state := i.state
	defer func() { state = symmetric{} }()
	state.mixEphemeral(msg.Ephemeral())
	if !i.mixShared(&state, msg.Ephemeral()) {
		return Keys{}, drop.HSInvalid
	}
	for n, psk := range psks {
		keys := Keys{Local: i.sender, Remote: msg.Sender(), Initiator: true, Preshared: n}
		if state.finish(msg, psk, &keys) {
			i.Wipe()
			return keys, drop.None
		}
	}
	return Keys{}, drop.HSInvalid
}

// finish derives the keys with a preshared key, unless the response was made with another one. The chain and the hash stay as they are.
func (s *symmetric) finish(msg *wire.Response, psk *PresharedKey, keys *Keys) bool {
	state := *s
	defer func() { state = symmetric{} }()
	key := state.mixPSK(psk)
	defer clear(key[:])
	if !state.open(nil, &key, msg.Empty()) {
		return false
	}
	state.split(keys, &keys.Send, &keys.Recv)
	return true
}

// mixShared mixes in the DH results of the responder's ephemeral key with our ephemeral and our static key.
func (i *Initiator) mixShared(state *symmetric, ephemeral *[KeySize]byte) bool {
	var shared [KeySize]byte
	defer clear(shared[:])
	for _, private := range []*ecdh.PrivateKey{i.ephemeral, i.remote.local.private} {
		if !exchange(&shared, private, ephemeral) {
			return false
		}
		state.mixKey(shared[:])
	}
	return true
}

// Wipe ends the handshake in flight, if any, and overwrites its state. crypto/ecdh holds the ephemeral
// private key, so only the reference to it is dropped.
func (i *Initiator) Wipe() { *i = Initiator{remote: i.remote} }
