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

	"github.com/ropewalk/ropewalk/pkg/tun"
)

// upgradable is a Daemon as far as upgrade needs one.
func upgradable(start func(_, _ string) (*Successor, error)) *Daemon {
	return &Daemon{
		o: Options{Upgrade: start}, log: slog.New(slog.DiscardHandler), given: make(chan struct{}), ended: make(chan struct{}),
		tunnel: &tunnel{tun: tun.NewFake(tun.FakeConfig{})},
	}
}

// successor is one that ends when it is killed, or when the test says so.
func successor() (s *Successor, end chan error, killed *bool) {
	end, killed = make(chan error, 1), new(bool)
	return &Successor{Ended: end, Kill: func() { *killed = true; end <- nil }}, end, killed
}

func TestASuccessorThatIsLateIsEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, killed := successor()
		d := upgradable(func(_, _ string) (*Successor, error) { return s, nil })
		answered, err := d.upgrade(t.Context(), "/new")
		if !errors.Is(err, syscall.ETIMEDOUT) || !*killed || answered != nil {
			t.Errorf("killed: %t; %v", *killed, err)
		}
		d.upgrades.Wait() // nobody is waited for
	})
}

func TestASuccessorThatHangsDoesNotKeepTheDaemonFromEnding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, killed := successor()
		d := upgradable(func(_, _ string) (*Successor, error) { return s, nil })
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		began := time.Now()
		if _, err := d.upgrade(ctx, "/new"); !errors.Is(err, context.Canceled) || !*killed {
			t.Errorf("killed: %t; %v", *killed, err)
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("it has waited for %s", took)
		}
		d.upgrades.Wait()
	})
}

// TestASuccessorThatIsJustGivenTheTunnelIsNotEnded has the hand-over be under way when the time is over.
func TestASuccessorThatIsJustGivenTheTunnelIsNotEnded(t *testing.T) {
	for name, ends := range map[string]bool{"late": false, "ended": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, end, killed := successor()
				d := upgradable(func(_, _ string) (*Successor, error) { return s, nil })
				d.handing.Lock()
				go func() {
					time.Sleep(upgradeTime)
					if ends {
						end <- nil
					}
					d.mu.Lock()
					d.left = true
					d.mu.Unlock()
					d.handing.Unlock()
					d.endAfterHandOver("wg0", 7)
				}()
				told := 0
				d.o.HandedOver = func(_ string, pid int) { time.Sleep(time.Second); told = pid }
				answered, err := d.upgrade(t.Context(), "/new")
				if err != nil || *killed || told != 7 {
					t.Fatalf("killed: %t, told of process %d before the answer; %v", *killed, told, err)
				}
				answered()
				d.upgrades.Wait()
			})
		})
	}
}

func TestASuccessorThatEndsEarlyIsAnError(t *testing.T) {
	d := upgradable(func(_, _ string) (*Successor, error) {
		s, end, _ := successor()
		end <- errors.New("exit status 1")
		return s, nil
	})
	if _, err := d.upgrade(t.Context(), "/new"); !errors.Is(err, errEndedEarly) || !strings.Contains(err.Error(), "exit status 1") {
		t.Error(err) // which whoever asked logs
	}
	d.upgrades.Wait()
}

func TestADaemonThatHasHandedOverStartsNoSuccessor(t *testing.T) {
	d := upgradable(func(_, _ string) (*Successor, error) { panic("started") })
	d.left = true
	if _, err := d.upgrade(t.Context(), "/new"); !errors.Is(err, syscall.ENODEV) {
		t.Error(err)
	}
}
