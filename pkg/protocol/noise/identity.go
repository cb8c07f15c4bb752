// SPDX-License-Identifier: Apache-2.0

package noise

import (
	"crypto/ecdh"
	"errors"
	"fmt"
	"io"
)

// ErrLowOrder means that a public key is a point of low order: every private key yields the all-zero secret with it. Such
// a key never completes a handshake.
var ErrLowOrder = errors.New("public key of low order")

// ErrNoPrivateKey means that NewIdentity was called with the zero private key, which means none.
var ErrNoPrivateKey = errors.New("no private key")

// Identity is our static key pair. It never changes and is safe for concurrent use.
type Identity struct {
	hidden
	private *ecdh.PrivateKey
	public  PublicKey
	start   symmetric // of handshakes we respond to
}

// NewIdentity precomputes the state that all handshakes with a private key share. The zero key is ErrNoPrivateKey.
func NewIdentity(key PrivateKey) (*Identity, error) {
	if key.IsZero() {
		return nil, ErrNoPrivateKey
	}
	private, err := ecdh.X25519().NewPrivateKey(key[:])
	if err != nil {
		return nil, fmt.Errorf("preparing a private key: %w", err)
	}
	id := &Identity{private: private, public: PublicKey(private.PublicKey().Bytes())}
	id.start = newSymmetric(&id.public)
	return id, nil
}

// Public returns the public key.
func (id *Identity) Public() PublicKey { return id.public }

// Remote is a peer's static public key with the values derived from it and our Identity. It never changes and is
// safe for concurrent use; make a new one when the Identity changes.
type Remote struct {
	hidden
	local  *Identity
	public PublicKey
	shared [KeySize]byte // DH of both static keys
	start  symmetric     // of handshakes we initiate
	macs   macKeys
}

// NewRemote precomputes the state that all handshakes with a peer share. A peer's key of low order is ErrLowOrder; stock
// implementations keep such a peer in their configuration and never talk to it.
func NewRemote(local *Identity, public PublicKey) (*Remote, error) {
	var shared [KeySize]byte
	defer clear(shared[:])
	if !exchange(&shared, local.private, (*[KeySize]byte)(&public)) {
		return nil, fmt.Errorf("preparing peer %v: %w", public, ErrLowOrder)
	}
	return &Remote{
		local: local, public: public, shared: shared,
		start: newSymmetric(&public), macs: newMACKeys(public),
	}, nil
}

// Public returns the peer's public key.
func (r *Remote) Public() PublicKey { return r.public }

// newEphemeral returns a key pair made of rand's bytes. (ecdh's GenerateKey ignores its rand argument.)
func newEphemeral(rand io.Reader) (*ecdh.PrivateKey, error) {
	key, err := NewPrivateKey(rand)
	if err != nil {
		return nil, err
	}
	defer clear(key[:])
	return ecdh.X25519().NewPrivateKey(key[:])
}

// exchange stores the result of X25519 (RFC 7748, §6.1) in shared. It returns false for an all-zero result. The result is stored and not
// returned, so that it is not copied on the stack.
func exchange(shared *[KeySize]byte, private *ecdh.PrivateKey, public *[KeySize]byte) (ok bool) {
	point, err := ecdh.X25519().NewPublicKey(public[:])
	if err != nil {
		return false
	}
	secret, err := private.ECDH(point)
	if err != nil {
		return false
	}
	copy(shared[:], secret)
	clear(secret)
	return true
}
