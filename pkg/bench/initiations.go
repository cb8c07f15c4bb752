// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"

	"github.com/ropewalk/ropewalk/pkg/noise"
	"github.com/ropewalk/ropewalk/pkg/wire"
)

// randomInitiations are so many handshake initiations, one behind the other, with a right mac1 for the responder and noise
// in place of the rest: what whoever knows a public key can send without any work, and a responder has to look at.
func randomInitiations(count int, responder noise.PublicKey) ([]byte, error) {
	jar, err := macsFor(responder)
	if err != nil {
		return nil, fmt.Errorf("making initiations: %w", err)
	}
	all := make([]byte, count*wire.InitiationSize)
	_, _ = rand.Read(all) // never fails
	for i := range count {
		m := all[i*wire.InitiationSize:][:wire.InitiationSize]
		binary.LittleEndian.PutUint32(m, uint32(wire.TypeInitiation))
		if err := jar.AddMACs(m, 0); err != nil {
			return nil, fmt.Errorf("making initiations: %w", err)
		}
	}
	return all, nil
}

// macsFor writes the MACs that a responder checks.
func macsFor(responder noise.PublicKey) (*noise.CookieJar, error) {
	key, err := noise.NewPrivateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	local, err := noise.NewIdentity(key)
	if err != nil {
		return nil, err
	}
	remote, err := noise.NewRemote(local, responder)
	if err != nil {
		return nil, err
	}
	return noise.NewCookieJar(remote), nil
}
