// SPDX-License-Identifier: Apache-2.0

package noise

import (
	"errors"
	"fmt"
	"io"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// ErrNotAuthenticated means that CreateResponse was called before Authenticate accepted an initiation.
var ErrNotAuthenticated = errors.New("no authenticated initiation")

// Responder is the responding side of one handshake after another: ConsumeInitiation, Authenticate, CreateResponse.
// It is not safe for concurrent use; a handshake worker owns one.
type Responder struct {
	hidden
	local     *Identity
	state     symmetric
	stage     stage
	static    PublicKey
	ephemeral [KeySize]byte
	timestamp [wire.TimestampLen + wire.TagLen]byte // encrypted
	sender    uint32                                // the initiator's index
}

// stage is the state of a Responder.
type stage uint8

const (
	idle          stage = iota
	consumed            // the initiator's static key is known, but not yet proven
	authenticated       // the initiator has proven its static key
)

// NewResponder returns a Responder without a handshake.
func NewResponder(local *Identity) *Responder { return &Responder{local: local} }

// ConsumeInitiation decrypts the first message (paper §5.4.2) up to the initiator's static public key, by which the
// caller finds the peer. Anyone who knows our public key can create a message that gets this far: the returned key is
// unverified until Authenticate confirms it. It does not check the MACs: call CookieChecker.Check first.
//
// It returns HSInvalid when the message does not decrypt, or Classify's reasons. Any earlier handshake is dropped.
func (r *Responder) ConsumeInitiation(b []byte) (PublicKey, drop.Reason) {
	r.Wipe()
	msg, reason := wire.AsInitiation(b)
	if reason != drop.None {
		return PublicKey{}, reason
	}
	var shared [KeySize]byte
	defer clear(shared[:])
	if !exchange(&shared, r.local.private, msg.Ephemeral()) {
		return PublicKey{}, drop.HSInvalid
	}
	r.state = r.local.start
	r.state.mixEphemeral(msg.Ephemeral())
	key := r.state.mixKeyForCipher(shared[:])
	defer clear(key[:])
	if !r.state.open(r.static[:], &key, msg.Static()) {
		r.Wipe()
		return PublicKey{}, drop.HSInvalid
	}
	r.ephemeral, r.sender = *msg.Ephemeral(), msg.Sender()
	copy(r.timestamp[:], msg.Timestamp())
	r.stage = consumed
	return r.static, drop.None
}

// Authenticate processes the rest of the first message with the peer whose key ConsumeInitiation returned. It proves
// that the initiator holds that key, without a Diffie-Hellman computation. The caller must reject a timestamp that is
// not After the peer's last one (HSReplay), and otherwise store it, before it continues. On HSInvalid the handshake
// is dropped.
func (r *Responder) Authenticate(remote *Remote) (Timestamp, drop.Reason) {
	if r.stage != consumed || remote == nil || remote.local != r.local || remote.public != r.static {
		r.Wipe()
		return Timestamp{}, drop.HSInvalid
	}
	var timestamp Timestamp
	key := r.state.mixKeyForCipher(remote.shared[:])
	defer clear(key[:])
	if !r.state.open(timestamp[:], &key, r.timestamp[:]) {
		r.Wipe()
		return Timestamp{}, drop.HSInvalid
	}
	r.stage = authenticated
	return timestamp, drop.None
}

// CreateResponse writes the second message (paper §5.4.3) with our index sender, and with zero MACs, which
// CookieJar.AddMACs fills in, and returns the session's keys. psk is the peer's preshared key at this moment; the zero
// key stands for none. rand must be good: 32 of its bytes become the ephemeral private key. The handshake is
// over afterwards, also on error: rand's error, or ErrNotAuthenticated.
func (r *Responder) CreateResponse(
	msg *wire.Response, sender uint32, psk *PresharedKey, rand io.Reader,
) (Keys, error) {
	defer r.Wipe()
	if r.stage != authenticated {
		return Keys{}, ErrNotAuthenticated
	}
	*msg = wire.Response{}
	msg.SetHeader(sender, r.sender)
	if err := r.mixEphemeral(msg, rand); err != nil {
		return Keys{}, fmt.Errorf("creating a response: %w", err)
	}
	key := r.state.mixPSK(psk)
	defer clear(key[:])
	r.state.seal(msg.Empty(), &key, nil)

	keys := Keys{Local: sender, Remote: r.sender}
	r.state.split(&keys, &keys.Recv, &keys.Send)
	return keys, nil
}

// mixEphemeral creates our ephemeral key, writes it, and mixes in the key and its DH results with the initiator's keys.
func (r *Responder) mixEphemeral(msg *wire.Response, rand io.Reader) error {
	ephemeral, err := newEphemeral(rand)
	if err != nil {
		return err
	}
	copy(msg.Ephemeral()[:], ephemeral.PublicKey().Bytes())
	r.state.mixEphemeral(msg.Ephemeral())
	var shared [KeySize]byte
	defer clear(shared[:])
	for _, public := range []*[KeySize]byte{&r.ephemeral, (*[KeySize]byte)(&r.static)} {
		if !exchange(&shared, ephemeral, public) {
			return ErrLowOrder
		}
		r.state.mixKey(shared[:])
	}
	return nil
}

// Wipe ends the handshake and overwrites its state.
func (r *Responder) Wipe() { *r = Responder{local: r.local} }
