// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"bytes"
	"crypto/ecdh"
	"fmt"

	"golang.org/x/crypto/blake2s"

	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
)

// ProbeSecrets are the keys of WireGuard from which both ends derive the keys of probes. It redacts itself. The preshared key is
// not among them: other programs set a new one every two minutes, and the ends would see it at different times.
type ProbeSecrets struct {
	private, public [32]byte
}

// NewProbeSecrets takes this host's private key and the peer's public key.
func NewProbeSecrets(private, public [32]byte) ProbeSecrets {
	return ProbeSecrets{private, public}
}

// Format implements fmt.Formatter, for every verb.
func (ProbeSecrets) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte("(redacted)")) }

// MarshalText keeps the keys out of JSON and of logs.
func (ProbeSecrets) MarshalText() ([]byte, error) { return []byte("(redacted)"), nil }

// testKeys are the keys of peers of which none are known, with Config.AnySocket.
var testKeys = programs.NewProbeKeys([16]byte{1}, [16]byte{1})

// probeLabel separates the keys of probes from all others that are derived from the same secrets.
const probeLabel = "ropewalk spread probe v1"

// keys returns the keys of probes, or none if the private key is unknown.
func (s ProbeSecrets) keys() programs.ProbeKeys {
	send, receive, ok := s.derive()
	if !ok {
		return programs.ProbeKeys{}
	}
	return programs.NewProbeKeys(send, receive)
}

// derive returns the keys of both ends. Each end uses its own key for its probes, so that none can be sent back to its prober.
func (s ProbeSecrets) derive() (send, receive [16]byte, ok bool) {
	private, err := ecdh.X25519().NewPrivateKey(s.private[:])
	if err != nil || s.private == [32]byte{} {
		return send, receive, false
	}
	public, err := ecdh.X25519().NewPublicKey(s.public[:])
	if err != nil {
		return send, receive, false
	}
	shared, err := private.ECDH(public)
	if err != nil { // a point of low order
		return send, receive, false
	}
	derived := blake2s.Sum256(append([]byte(probeLabel), shared...))
	send, receive = [16]byte(derived[:16]), [16]byte(derived[16:])
	if bytes.Compare(private.PublicKey().Bytes(), s.public[:]) > 0 {
		send, receive = receive, send
	}
	return send, receive, true
}

// probeKeys holds keys that were derived before: thousands take a noticeable time.
type probeKeys map[ProbeSecrets]programs.ProbeKeys

func (k probeKeys) of(s ProbeSecrets) programs.ProbeKeys {
	if s == (ProbeSecrets{}) {
		return programs.ProbeKeys{}
	}
	keys, ok := k[s]
	if !ok {
		keys = s.keys()
		if k != nil {
			k[s] = keys
		}
	}
	return keys
}
