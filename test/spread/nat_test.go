// SPDX-License-Identifier: Apache-2.0

package spread

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/test/expect"
)

// nft skips the test if nftables is missing.
func (l *lab) nft(err error) {
	l.Helper()
	if errors.Is(err, netlab.ErrNoNftables) {
		l.Skip(err)
	}
	expect.NoError(l, err)
}

// startBehindNAT runs ropewalk at both ends. Only the left one has the other's endpoint.
func (l *lab) startBehindNAT() {
	l.Helper()
	for _, s := range l.both() {
		l.startDaemon(s)
	}
	l.configure(l.right, netip.AddrPort{})
	l.configure(l.left, l.right.endpoint())
	l.connect()
}

// wantSpreadOff waits until a side reports that it does not spread, with a reason that contains words.
func (l *lab) wantSpreadOff(s *side, words string) {
	l.Helper()
	f := l.newFlows()
	defer f.close()
	expect.EventuallyNoError(l, s.name+" to report "+words, func() error {
		f.round(time.Second)
		if p := l.spreading(s); p.Active || !strings.Contains(p.Reason, words) {
			return fmt.Errorf("spread state is %+v", p)
		}
		return nil
	})
	if out := l.showLanes(s); !strings.Contains(out, "spread: off (") || !strings.Contains(out, words) {
		l.Errorf("%s shows\n%s", s.name, out)
	}
}

// wantOnePort sends, and checks that all packets have the listen port as source port.
func (l *lab) wantOnePort() {
	l.Helper()
	o, _ := l.sendFlows(l.watch(l.left.host, cable), 5, func() {})
	if !o.allOnOnePort() || o.reordered > 0 {
		l.Errorf("not spread: %v", o)
	}
}

// TestSpreadIsOffBehindNAT has one side behind a masquerade, which keeps ports or changes them. Both ends must detect it.
func TestSpreadIsOffBehindNAT(t *testing.T) {
	for name, ports := range map[string]netlab.NATPorts{"that keeps ports": {}, "that changes ports": {First: 30000, Last: 30100}} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			l.connectHosts(false, false)
			l.nft(l.router.Masquerade(toRight, ports))
			l.startBehindNAT()
			for _, s := range l.both() {
				l.wantSpreadOff(s, "behind a NAT")
				t.Logf("%s: %s", s.name, l.spreading(s).Reason)
			}
			l.wantOnePort()
		})
	}
}

// TestSpreadIsOffBehindStatefulFirewall has the left side behind a firewall that admits only replies. It would drop packets
// of the right side from other ports, so the right side must not spread. The left side may.
func TestSpreadIsOffBehindStatefulFirewall(t *testing.T) {
	l := newLab(t)
	l.connectHosts(false, false)
	l.nft(l.router.AcceptRepliesOnly(toRight))
	l.startBehindNAT()
	f := l.newFlows()
	defer f.close()
	expect.EventuallyNoError(l, "the left side to spread", func() error {
		f.round(time.Second)
		if p := l.spreading(l.left); !p.Active {
			return errors.New(p.Reason)
		}
		return nil
	})
	if o := l.send(5); o.reordered > 0 {
		t.Errorf("got %v, want none reordered", o)
	}
	l.wantSpreadOff(l.right, "a firewall may drop them")
	t.Logf("right: %s", l.spreading(l.right).Reason)
}

// TestFirewallDuringSessionMovesFlows has a firewall come that admits only replies to the left side, and go again. One that has tracked
// the tunnel admits its listen port at once. One that has not does so when the right side, which has no data to send, sends a keepalive.
func TestFirewallDuringSessionMovesFlows(t *testing.T) {
	for name, tracked := range map[string]bool{"that has tracked the tunnel": true, "that knows no connection": false} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			l.connectHosts(false, false)
			if tracked {
				l.nft(l.router.TrackConnections())
			}
			l.startEngine()
			l.awaitSpread()
			if !tracked {
				l.keepAlive(l.right, time.Second)
			}
			l.nft(l.router.AcceptRepliesOnly(fromLeft))
			l.awaitFlows("to leave from the listen port", func(blocked int) bool { return blocked > 0 })
			if out := l.showLanes(l.left); !strings.Contains(out, "blocked on the path") {
				t.Errorf("the left side shows\n%s", out)
			}
			l.checkEndpoint(l.right)
			expect.NoError(t, l.router.AcceptAll())
			l.awaitFlows("to be spread again", func(blocked int) bool { return blocked == 0 })
		})
	}
}

// keepAlive sets the persistent keepalive of a side.
func (l *lab) keepAlive(s *side, every time.Duration) {
	l.Helper()
	peer := wgtypes.PeerConfig{PublicKey: l.other(s).key.PublicKey(), UpdateOnly: true, PersistentKeepaliveInterval: &every}
	expect.NoError(l, s.wg(func(c *wgctrl.Client) error {
		return c.ConfigureDevice(s.ifname, wgtypes.Config{Peers: []wgtypes.PeerConfig{peer}})
	}))
}

// awaitFlows sends from the left side until all packets arrive and the number of blocked ports is good.
func (l *lab) awaitFlows(what string, good func(blocked int) bool) {
	l.Helper()
	f := l.newFlows()
	defer f.close()
	expect.EventuallyNoError(l, "flows "+what, func() error {
		complete, p := f.round(time.Second), l.spreading(l.left)
		if !complete || !p.Active || !good(len(p.Blocked)) {
			return fmt.Errorf("all packets arrived: %v, spread state %+v", complete, p)
		}
		return nil
	})
}
