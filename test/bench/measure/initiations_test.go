// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"bytes"
	"crypto/rand"
	"net/netip"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// TestFloodInitiationsPassMAC1Check: its mac1 is right for the responder, and for nobody else, and no two are
// the same.
func TestFloodInitiationsPassMAC1Check(t *testing.T) {
	var public [2]noise.PublicKey
	for i := range public {
		key, err := noise.NewPrivateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		public[i] = key.Public()
	}
	const count = 5
	all, err := randomInitiations(count, public[0])
	if err != nil || len(all) != count*wire.InitiationSize {
		t.Fatalf("%d bytes, %v", len(all), err)
	}
	checkers := [2]*noise.CookieChecker{noise.NewCookieChecker(public[0]), noise.NewCookieChecker(public[1])}
	for i := range count {
		m := all[i*wire.InitiationSize:][:wire.InitiationSize]
		if _, reason := wire.AsInitiation(m); reason != drop.None {
			t.Errorf("initiation %d: %v", i, reason)
		}
		for who, want := range []bool{true, false} {
			mac1, mac2 := checkers[who].Check(m, netip.MustParseAddrPort("192.0.2.1:1"), 0)
			if mac1 != want || mac2 {
				t.Errorf("initiation %d, responder %d: mac1 %v, mac2 %v", i, who, mac1, mac2)
			}
		}
		if i > 0 && bytes.Equal(m, all[:wire.InitiationSize]) {
			t.Errorf("initiation %d is the first again", i)
		}
	}
}
