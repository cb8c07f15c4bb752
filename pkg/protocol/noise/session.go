// SPDX-License-Identifier: Apache-2.0

package noise

// SessionKey encrypts one direction of a session (ChaCha20-Poly1305). It redacts itself.
type SessionKey [KeySize]byte

// Keys are the result of a handshake: the keys of one session. The owner wipes them once the ciphers are created.
type Keys struct {
	Send SessionKey
	Recv SessionKey
	// Local is the receiver index of messages to us, Remote the receiver index of messages to the
	// peer.
	Local  uint32
	Remote uint32
	// Initiator is set on the side that sent the initiation.
	Initiator bool
	// Preshared is the index of the preshared key that fits, among the keys that an initiator has
	// tried.
	Preshared int
	// Exporter is a secret of the session from which further keys can be derived. It is the third
	// output of the KDF whose first two are the session keys. Hash is the transcript hash of the
	// handshake, which is no secret.
	Exporter SessionKey
	Hash     [KeySize]byte
}

// Wipe overwrites the keys.
func (k *Keys) Wipe() { *k = Keys{} }
