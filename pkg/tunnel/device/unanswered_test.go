// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// TestUnansweredInitiationsAreReported has a peer behind a network that drops everything for a while.
func TestUnansweredInitiationsAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lockedText
		var down atomic.Bool
		down.Store(true)
		lan := devicetest.NewLAN(func(_, _ netip.AddrPort, _ []byte) underlaytest.Verdict {
			if down.Load() {
				return underlaytest.Drop
			}
			return underlaytest.Deliver
		})
		a := lan.Host(t, 1, devicetest.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
		b := lan.Host(t, 2, devicetest.Options{})
		devicetest.Connect(a, b)
		a.Send(flow.WithVnetHeader(a.To(b, 1, false).UDP(nil)))
		time.Sleep(14 * time.Second)
		if got := a.PeerStatus(b).Handshake; got.Failing() || got.String() != "" {
			t.Errorf("after two: got %+v", got)
		}
		time.Sleep(3 * time.Second)
		if got := a.PeerStatus(b).Handshake.String(); got != "3 initiations unanswered" {
			t.Errorf("got %q", got)
		}
		if got := a.Stats().(device.Stats).FailingHandshakes; len(got) != 1 {
			t.Errorf("got %+v, want one peer", got)
		}
		time.Sleep(30 * time.Second)
		if n := strings.Count(log.String(), "handshake initiations are not answered"); n != 1 || !strings.Contains(log.String(), b.Public().String()) {
			t.Errorf("got %d warnings, want 1, about %v:\n%s", n, b.Public(), log.String())
		}
		if strings.Contains(log.String(), "refused=") {
			t.Errorf("a peer that sends nothing has refused nothing:\n%s", log.String())
		}
		down.Store(false)
		time.Sleep(6 * time.Second)
		if got := a.PeerStatus(b).Handshake; got != (config.PeerHandshake{}) {
			t.Errorf("after a handshake: got %+v", got)
		}
		if got := a.Stats().(device.Stats).FailingHandshakes; len(got) != 0 {
			t.Errorf("after a handshake: got %+v", got)
		}
	})
}

// refusingPort refuses to send single messages.
type refusingPort struct{ underlay.Port }

func (refusingPort) SendTo(*underlay.Endpoint, []byte) error { return syscall.ENETUNREACH }

func TestInitiationThatCannotBeSentIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lockedText
		lan := devicetest.NewLAN(nil)
		a := lan.Host(t, 1, devicetest.Options{
			Log: slog.New(slog.NewTextHandler(&log, nil)), WrapPort: func(p underlay.Port) underlay.Port { return refusingPort{p} },
		})
		b := lan.Host(t, 2, devicetest.Options{})
		devicetest.Connect(a, b)
		a.Send(flow.WithVnetHeader(a.To(b, 1, false).UDP(nil)))
		time.Sleep(17 * time.Second)
		want := errors.Join(syscall.ENETUNREACH).Error()
		if got := a.PeerStatus(b).Handshake; got.Error != want || !got.Failing() {
			t.Errorf("got %+v, want the error %q", got, want)
		}
		if n := strings.Count(log.String(), "sending a handshake initiation failed"); n != 1 || !strings.Contains(log.String(), want) {
			t.Errorf("got %d warnings, want 1 with %q:\n%s", n, want, log.String())
		}
	})
}
