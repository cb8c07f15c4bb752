// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// snapshotOf begins a handover.
func snapshotOf(t *testing.T, a *devicetest.Host) *device.State {
	t.Helper()
	s, err := a.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// addSilentPeers configures n more peers, which have an endpoint and never answer.
func addSilentPeers(a *devicetest.Host, n int) {
	var c config.Device
	for i := range n {
		c.Peers = append(c.Peers, config.Peer{
			PublicKey: noise.PublicKey{7, byte(i), byte(i >> 8)}, Endpoint: &config.Endpoint{AddrPort: netip.MustParseAddrPort("192.0.2.9:9")},
			AllowedIPs: []config.AllowedIP{{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 99, byte(i >> 8), byte(i)}), 32)}},
		})
	}
	a.Apply(c)
}

// TestHandoverAfterSnapshotHasOnlyActivePeers counts what is handed over while no packets are carried.
func TestHandoverAfterSnapshotHasOnlyActivePeers(t *testing.T) {
	sizes := map[int]int{}
	for _, n := range []int{0, 500} {
		synctest.Test(t, func(t *testing.T) {
			a, b := devicetest.Pair(t, devicetest.Options{})
			addSilentPeers(a, n)
			talk(t, a, b)
			time.Sleep(10 * time.Second)
			snapshot := snapshotOf(t, a)
			changes := handedOn(t, a)
			text, err := changes.Encode()
			if err != nil {
				t.Fatal(err)
			}
			sizes[n] = len(text)
			if len(snapshot.Peers) != n+1 || len(changes.Peers) != 1 {
				t.Errorf("%d peers in the snapshot, want %d; %d have changed, want the one with a session", len(snapshot.Peers), n+1, len(changes.Peers))
			}
		})
	}
	if more := sizes[500] - sizes[0]; more > 16 || more < -16 { // digits of counters may differ
		t.Errorf("500 peers add %d bytes", more)
	}
}

// TestHandoverHasEveryChangeSinceSnapshot compares the state after each kind of change with a complete one.
func TestHandoverHasEveryChangeSinceSnapshot(t *testing.T) {
	for name, change := range map[string]func(*testing.T, *devicetest.Host, *devicetest.Host){
		"nothing":    func(*testing.T, *devicetest.Host, *devicetest.Host) {},
		"a session":  func(t *testing.T, a, b *devicetest.Host) { talk(t, a, b) },
		"a response": func(t *testing.T, a, b *devicetest.Host) { talk(t, b, a) },
		"no answer": func(_ *testing.T, a, _ *devicetest.Host) {
			ends := a.To(a, 7, false)
			ends.Dst = netip.AddrPortFrom(netip.MustParseAddr("10.99.0.1"), 7)
			a.Send(flow.WithVnetHeader(ends.UDP([]byte("x"))))
			time.Sleep(time.Second)
		},
		"no endpoint": func(_ *testing.T, a, _ *devicetest.Host) {
			ends := a.To(a, 7, false)
			ends.Dst = netip.AddrPortFrom(netip.MustParseAddr("10.98.0.1"), 7)
			a.Send(flow.WithVnetHeader(ends.UDP([]byte("x"))))
		},
		"routes":      func(_ *testing.T, a, _ *devicetest.Host) { a.RoutesChanged() },
		"down and up": func(_ *testing.T, a, _ *devicetest.Host) { a.TUN.SetUp(false); synctest.Wait(); a.TUN.SetUp(true) },
		"down":        func(_ *testing.T, a, _ *devicetest.Host) { a.TUN.SetUp(false) },
	} {
		for _, session := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, session %t", name, session), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					a, b := devicetest.Pair(t, devicetest.Options{})
					addSilentPeers(a, 3)
					a.Apply(config.Device{Peers: []config.Peer{{
						PublicKey: noise.PublicKey{8}, AllowedIPs: []config.AllowedIP{{Prefix: netip.MustParsePrefix("10.98.0.1/32")}},
					}}})
					if session {
						talk(t, a, b)
					}
					time.Sleep(time.Minute)
					snapshot := snapshotOf(t, a)
					time.Sleep(time.Second)
					change(t, a, b)
					synctest.Wait()
					changes := handedOn(t, a)
					want := a.CompleteState()
					diff := cmp.Diff(want, snapshot.Merge(changes), cmpopts.EquateEmpty(), cmpopts.SortSlices(func(x, y device.PeerState) bool { return x.PublicKey.Base64() < y.PublicKey.Base64() }),
						cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{}))
					if diff != "" {
						t.Error(diff)
					}
				})
			})
		}
	}
}

// TestUpdatedDeviceRejectsReplayedInitiations has an initiation that arrives while the next process prepares.
func TestUpdatedDeviceRejectsReplayedInitiations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen messages
		lan := devicetest.NewLAN(seen.filter)
		a, b := lan.Host(t, 1, devicetest.Options{}), lan.Host(t, 2, devicetest.Options{})
		devicetest.Connect(a, b)
		snapshot := snapshotOf(t, b)
		talk(t, a, b) // a initiates
		old, from := seen.latest(wire.TypeInitiation), underlay.Endpoint{Dst: a.Outside(false)}
		changes := handedOn(t, b)
		c := lan.Host(t, 2, devicetest.Options{Stop: true})
		if err := errors.Join(c.Resume(snapshot), c.Update(changes)); err != nil {
			t.Fatal(err)
		}
		followUp(t, c)
		if r := c.Handshake(old, from); r != drop.None {
			t.Fatal(r)
		}
		if got := c.StepHandshakes(); !slices.Contains(got, drop.HSReplay) { // a's response may have arrived, too
			t.Errorf("an initiation of before: %v", got)
		}
	})
}

// TestConfigureFailsDuringHandover: the change would be lost.
func TestConfigureFailsDuringHandover(t *testing.T) {
	a, _ := devicetest.Pair(t, devicetest.Options{})
	snapshotOf(t, a)
	if err := a.Configure(config.Device{}); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("got %v, want %v", err, syscall.EBUSY)
	}
	a.DiscardSnapshot()
	if err := a.Configure(config.Device{}); err != nil {
		t.Error(err)
	}
}

// TestUpdateRefusesUnknownPeer and a device that was started.
func TestUpdateRefusesUnknownPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := devicetest.Pair(t, devicetest.Options{})
		talk(t, a, b)
		s := snapshotOf(t, a)
		changes := handedOn(t, a)
		if err := b.Update(changes); err == nil {
			t.Error("a device that runs was updated")
		}
		lan := devicetest.NewLAN(nil)
		c := lan.Host(t, 1, devicetest.Options{Stop: true})
		s.Peers = nil
		if err := c.Resume(s); err != nil {
			t.Fatal(err)
		}
		if err := c.Update(changes); err == nil {
			t.Error("an unknown peer was updated")
		}
	})
}
