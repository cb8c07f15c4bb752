// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"

	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// randomInitiations returns count consecutive handshake initiations with a valid mac1 and random bytes elsewhere. Anyone
// who knows the responder's public key can send them without any work, and the responder has to process each of them.
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

// macsFor returns a cookie jar that writes the MACs that the responder checks.
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
