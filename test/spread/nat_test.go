// SPDX-License-Identifier: Apache-2.0

package spread

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

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
