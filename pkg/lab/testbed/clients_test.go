// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"net/netip"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab/netlabtest"
	"github.com/ropewalk/ropewalk/pkg/lab/traffic"
)

// noServer stands for a traffic server in labs without traffic.
func noServer() []string {
	return []string{"/bin/sh", "-c", "echo listening on nothing; exec sleep 1000"}
}

func newLab(t *testing.T, cfg Config) *Lab {
	t.Helper()
	privileged(t)
	cfg.Prefix, cfg.Traffic = netlabtest.Prefix(t), noServer()
	l, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func TestClientsReachEachOtherThroughSides(t *testing.T) {
	l := newLab(t, Config{Clients: true})
	if l.Addrs(l.B)[0] != netip.MustParseAddr("10.78.1.2") || l.B.App == l.B.Host {
		t.Errorf("traffic ends at %s in %s", l.Addrs(l.B)[0], l.B.App.Name())
	}
	if rtts, _, err := l.Ping(t.Context(), time.Time{}, 3, 20*time.Millisecond); err != nil || len(rtts) == 0 {
		t.Errorf("%v, %v", rtts, err)
	}
}

func TestLinkDelaysPingsOfLab(t *testing.T) {
	l := newLab(t, Config{Link: &netlab.Link{Delay: 5 * time.Millisecond}})
	rtts, _, err := l.Ping(t.Context(), time.Time{}, 3, 20*time.Millisecond)
	if err != nil || len(rtts) == 0 {
		t.Fatalf("%v, %v", rtts, err)
	}
	for _, rtt := range rtts {
		if rtt < 10*time.Millisecond {
			t.Errorf("a round trip of %s over two delays of 5 ms", rtt)
		}
	}
	if l.Dropped() != 0 {
		t.Errorf("%d dropped", l.Dropped())
	}
}

func TestAnotherPeerIsReachedAndClosed(t *testing.T) {
	l := newLab(t, Config{})
	s, err := l.AddPeer(t.Context(), PeerConfig{
		Name: "slow", Near: netip.MustParsePrefix("192.168.78.1/24"), Far: netip.MustParsePrefix("192.168.78.2/24"),
		BitsPerSecond: 10e6, Queue: 64 << 10,
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, to := l.ends(Flow{To: s}); to != s || len(l.sides()) != 3 {
		t.Errorf("%d sides", len(l.sides()))
	}
	if _, to := l.ends(Flow{Config: traffic.Config{Kind: traffic.TCP}}); to != l.B {
		t.Error("a flow without a destination does not go to B")
	}
}
