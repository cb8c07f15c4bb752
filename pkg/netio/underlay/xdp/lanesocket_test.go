// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"testing"

	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestChecksumOffloadNeedsCompletingDevice: with other devices peers would drop every frame, without any error at the
// sender.
func TestChecksumOffloadNeedsCompletingDevice(t *testing.T) {
	for name, c := range map[string]struct {
		features  xsk.Features
		completes bool
		want      bool
	}{
		"a veth":                        {xsk.Features{Mode: xsk.Copy, TxChecksum: true}, true, true},
		"a veth before Linux 6.8":       {xsk.Features{Mode: xsk.Copy}, true, false},
		"hardware, by copies":           {xsk.Features{Mode: xsk.Copy, TxChecksum: true}, false, false},
		"a driver that says it does":    {xsk.Features{Mode: xsk.ZeroCopy, TxChecksum: true}, false, true},
		"a driver that does not say so": {xsk.Features{Mode: xsk.ZeroCopy}, false, false},
	} {
		if got := offloads(&c.features, c.completes); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

// TestOnlyVethCompletesChecksumsInCopyMode tests real devices.
func TestOnlyVethCompletesChecksumsInCopyMode(t *testing.T) {
	p := newPair(t, 1)
	expect.NoError(t, p.hosts[0].Do(func() error {
		if !completesChecksums(p.devs[0]) {
			t.Error("completesChecksums is false for a veth")
		}
		if completesChecksums("lo") || completesChecksums("none") {
			t.Error("completesChecksums is true for another device")
		}
		return nil
	}))
}
