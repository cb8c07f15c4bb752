// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/tun/tuntest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/daemon/handover"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
)

// newUpgradeDaemon returns a Daemon with the fields that upgrade uses.
func newUpgradeDaemon(start func(_, _ string) (*Successor, error)) *Daemon {
	return &Daemon{
		o: Options{StartSuccessor: start}, log: slog.New(slog.DiscardHandler), announced: make(chan struct{}), preparing: make(chan int, 1),
		done:   make(chan struct{}),
		tunnel: &tunnel{tun: tuntest.NewFake(tuntest.FakeConfig{})},
	}
}

// fakeSuccessor returns a Successor that ends when it is killed, or when the test sends to end.
func fakeSuccessor() (s *Successor, end chan error, killed *bool) {
	end, killed = make(chan error, 1), new(bool)
	return &Successor{Ended: end, Kill: func() { *killed = true; end <- nil }}, end, killed
}

// handOver ends a handover, as the request of a successor does.
func handOver(d *Daemon) {
	d.mu.Lock()
	d.handedOver = true
	d.mu.Unlock()
	d.finishHandover("wg0", 7)
}

func TestLateSuccessorIsKilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, killed := fakeSuccessor()
		d := newUpgradeDaemon(func(_, _ string) (*Successor, error) { return s, nil })
		replied, err := d.upgrade(t.Context(), "/new")
		if !errors.Is(err, syscall.ETIMEDOUT) || !*killed || replied != nil {
			t.Errorf("got process killed %t, error %v, want error %v", *killed, err, syscall.ETIMEDOUT)
		}
		d.upgradeReplies.Wait() // returns at once
	})
}

// TestSuccessorWithManyPeersHasMoreTime prepares as many peers as a device may have, for nearly the time that one predecessor waits.
func TestSuccessorWithManyPeersHasMoreTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, killed := fakeSuccessor()
		d := newUpgradeDaemon(func(_, _ string) (*Successor, error) { return s, nil })
		go func() {
			time.Sleep(time.Second)
			d.noteSnapshot(device.MaxPeers)
			time.Sleep(handover.PreparationTimeout(device.MaxPeers))
			handOver(d)
		}()
		replied, err := d.upgrade(t.Context(), "/new")
		if err != nil || *killed {
			t.Fatalf("got process killed %t, error %v", *killed, err)
		}
		replied()
	})
}

// TestSuccessorMayPrepareBeforeItsStartReturns has a successor that asks for the snapshot at once, and one of another upgrade before it.
func TestSuccessorMayPrepareBeforeItsStartReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, killed := fakeSuccessor()
		var d *Daemon
		d = newUpgradeDaemon(func(_, _ string) (*Successor, error) {
			d.noteSnapshot(1)
			d.noteSnapshot(device.MaxPeers)
			return s, nil
		})
		time.AfterFunc(handover.PreparationTimeout(device.MaxPeers), func() { handOver(d) })
		replied, err := d.upgrade(t.Context(), "/new")
		if err != nil || *killed {
			t.Fatalf("got process killed %t, error %v", *killed, err)
		}
		replied()
	})
}

// TestSnapshotForOtherSuccessorGivesNoTime takes one before the upgrade, by a process that has ended since.
func TestSnapshotForOtherSuccessorGivesNoTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, _ := fakeSuccessor()
		d := newUpgradeDaemon(func(_, _ string) (*Successor, error) { return s, nil })
		d.noteSnapshot(device.MaxPeers)
		began := time.Now()
		if _, err := d.upgrade(t.Context(), "/new"); !errors.Is(err, syscall.ETIMEDOUT) {
			t.Fatal(err)
		}
		if took := time.Since(began); took != upgradeTimeout {
			t.Errorf("the successor was killed after %s, want %s", took, upgradeTimeout)
		}
	})
}

func TestDaemonEndsDespiteHangingSuccessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, killed := fakeSuccessor()
		d := newUpgradeDaemon(func(_, _ string) (*Successor, error) { return s, nil })
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		began := time.Now()
		if _, err := d.upgrade(ctx, "/new"); !errors.Is(err, context.Canceled) || !*killed {
			t.Errorf("got process killed %t, error %v, want error %v", *killed, err, context.Canceled)
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("upgrade returned after %s", took)
		}
		d.upgradeReplies.Wait()
	})
}

// TestSuccessorReceivingTheTunnelIsNotKilled checks a handover that is in progress when the timeout expires.
func TestSuccessorReceivingTheTunnelIsNotKilled(t *testing.T) {
	for name, ends := range map[string]bool{"late": false, "ended": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, end, killed := fakeSuccessor()
				d := newUpgradeDaemon(func(_, _ string) (*Successor, error) { return s, nil })
				d.handoverMu.Lock()
				go func() {
					time.Sleep(upgradeTimeout)
					if ends {
						end <- nil
					}
					d.mu.Lock()
					d.handedOver = true
					d.mu.Unlock()
					d.handoverMu.Unlock()
					handOver(d)
				}()
				reported := 0
				d.o.OnHandover = func(_ string, pid int) { time.Sleep(time.Second); reported = pid }
				replied, err := d.upgrade(t.Context(), "/new")
				if err != nil || *killed || reported != 7 {
					t.Fatalf("got killed %t, process %d in OnHandover, error %v, want false, 7, no error", *killed, reported, err)
				}
				replied()
				d.upgradeReplies.Wait()
			})
		})
	}
}

func TestSuccessorThatExitsEarlyIsAnError(t *testing.T) {
	d := newUpgradeDaemon(func(_, _ string) (*Successor, error) {
		s, end, _ := fakeSuccessor()
		end <- errors.New("exit status 1")
		return s, nil
	})
	if _, err := d.upgrade(t.Context(), "/new"); !errors.Is(err, errSuccessorExited) || !strings.Contains(err.Error(), "exit status 1") {
		t.Error(err)
	}
	d.upgradeReplies.Wait()
}

func TestUpgradeAfterHandoverIsRefused(t *testing.T) {
	d := newUpgradeDaemon(func(_, _ string) (*Successor, error) { panic("started") })
	d.handedOver = true
	if _, err := d.upgrade(t.Context(), "/new"); !errors.Is(err, syscall.ENODEV) {
		t.Error(err)
	}
}
