// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"fmt"
	"testing"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/ropewalk/ropewalk/test/expect"
)

// payloadSizes are sizes of UDP payloads: empty, one byte, around multiples of the padding (16 bytes), the largest that fit the
// MTU over IPv6 and IPv4, and some that need two to six fragments.
var payloadSizes = []int{0, 1, 3, 4, 5, 19, 20, 21, 1000, mtu - 48, mtu - 28, mtu - 28 + 1, 2000, 8000}

// TCP payload in bytes per direction: enough for many trains, and few enough for an emulated machine.
const (
	oneStream   = 512 << 10
	manyStreams = 4
	eachOfMany  = 128 << 10
)

// TestTunnelCarriesTrafficInBothDirections sends datagrams, TCP streams and UDP trains through one tunnel and then checks the
// counters. Over IPv6 it uses a preshared key. Two ropewalks are tested in virtual machines too, because GSO and GRO differ
// between kernels.
func TestTunnelCarriesTrafficInBothDirections(t *testing.T) {
	list := pairings()
	if inMachine() {
		list = append(list, pairing{ropewalk, ropewalk})
	}
	forPairings(t, list, func(t *testing.T, p pairing) {
		forBothFamilies(t, func(t *testing.T, v6 bool) {
			t.Parallel()
			l := newLab(t, p, v6)
			if v6 {
				l.psk = presharedKey(t)
			}
			l.start(t)
			for _, x := range l.both() {
				serveEcho(t, x.host)
			}
			for _, x := range l.both() {
				l.carryFrom(t, x)
			}
			for _, x := range l.both() {
				wantCounters(t, x)
				x.noErrors(t)
			}
		})
	})
}

// carryFrom sends from x over both inner IP versions.
func (l *lab) carryFrom(t *testing.T, x *tunnel) {
	y := l.other(x)
	for _, inner6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("from %s/%s inside", x, familyName(inner6)), func(t *testing.T) {
			for _, size := range payloadSizes {
				exchange(t, x, y.inner(inner6), size)
			}
			bulk{from: x, to: y, v6: inner6, streams: 1, bytes: oneStream}.run(t)
			bulk{from: x, to: y, v6: inner6, streams: manyStreams, bytes: eachOfMany}.run(t)
			sendTrain(t, x, y, inner6)
		})
	}
}

// wantCounters asserts that x counted at least the TCP payload it carried each way.
func wantCounters(t *testing.T, x *tunnel) {
	t.Helper()
	const carried = 4 * (oneStream + manyStreams*eachOfMany)
	p := x.peer(t)
	if p.ReceiveBytes < carried || p.TransmitBytes < carried {
		t.Errorf("got %s counted %d bytes received and %d sent, want at least %d", x, p.ReceiveBytes, p.TransmitBytes, carried)
	}
}

func presharedKey(t *testing.T) *wgtypes.Key {
	t.Helper()
	k, err := wgtypes.GenerateKey()
	expect.NoError(t, err)
	return &k
}
