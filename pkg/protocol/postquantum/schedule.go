// SPDX-License-Identifier: Apache-2.0

package postquantum

import (
	"encoding/binary"

	"golang.org/x/crypto/blake2s"

	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// The labels of the key schedule. The first has the name of the suite.
const (
	transcriptLabel = "ropewalk post-quantum 1 ML-KEM-768 BLAKE2s"
	effectiveLabel  = "ropewalk post-quantum 1 preshared key"
)

// result is the output that both ends of an exchange derive.
type result struct {
	key noise.PresharedKey
	id  uint16
	tag [wire.KEMTagSize]byte // of the answerer: it proves that it has the key
}

// transcript is the hash of all that an exchange depends on and is no secret.
func transcript(offerer, answerer *noise.PublicKey, session *[noise.KeySize]byte, ek, ct []byte) (t [blake2s.Size]byte) {
	h, err := blake2s.New256(nil)
	if err != nil {
		panic(err) // a key that is too long, and there is none
	}
	for _, part := range [][]byte{[]byte(transcriptLabel), offerer[:], answerer[:], session[:], ek, ct} {
		h.Write(part)
	}
	h.Sum(t[:0])
	return t
}

// derive derives the result from the session's exporter and the KEM's shared secret. The exporter
// contains the Diffie-Hellman results of the session and the preshared key that it was made with.
// So the key is a secret if one of them or shared is.
func derive(exporter *noise.SessionKey, shared []byte, t *[blake2s.Size]byte) (r result) {
	var chain, confirm, id [noise.KeySize]byte
	noise.KDF((*[noise.KeySize]byte)(exporter), shared, &chain)
	noise.KDF(&chain, t[:], (*[noise.KeySize]byte)(&r.key), &confirm, &id)
	r.id = binary.LittleEndian.Uint16(id[:])
	mac := noise.HMAC(&confirm, t[:])
	copy(r.tag[:], mac[:])
	for _, secret := range []*[noise.KeySize]byte{&chain, &confirm, &id, &mac} {
		clear(secret[:])
	}
	return r
}

// effective mixes the key of an exchange into the configured preshared key, zero for none.
func effective(psk, key *noise.PresharedKey) (e noise.PresharedKey) {
	label := blake2s.Sum256([]byte(effectiveLabel))
	out := (*[noise.KeySize]byte)(&e)
	noise.KDF((*[noise.KeySize]byte)(psk), key[:], out)
	noise.KDF(out, label[:], out)
	return e
}
