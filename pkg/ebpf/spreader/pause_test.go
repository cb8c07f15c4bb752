// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/test/expect"
)

// pause pauses or resumes spreading at a side.
func (s *side) pause(peer netip.Addr, paused bool) {
	s.r.Helper()
	s.do(func() error { return s.host.SetPaused(s.r.Context(), peer, paused) })
}

// TestPauseKeepsListenPortUntilResumed also repeats the attach and has Watch change the peers, which must not resume anything.
func TestPauseKeepsListenPortUntilResumed(t *testing.T) {
	for name, peer := range map[string]netip.Addr{"all peers": {}, "one peer": thereAddr} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.here.attach(r.here.config())
			r.portsSeen(true)
			r.here.pause(peer, true)
			r.here.attach(r.here.config())
			reports, _, stop := r.here.watch(200 * time.Millisecond)
			r.next(reports)
			r.here.finder.set(wg("192.0.2.2:51820", "198.51.100.7:4000"))
			r.next(reports)
			stop()
			if ports := r.portsSeen(false); !ports[port] || len(ports) != 1 {
				t.Errorf("paused: got ports %v, want %d alone", ports, port)
			}
			st := r.here.status()
			if st.Spread.State != "attached" || st.Paused != !peer.IsValid() || st.Tunnels[0].Peers[0].Paused != peer.IsValid() || st.Tunnels[0].Peers[1].Paused {
				t.Errorf("paused: got status %+v", st)
			}
			r.here.pause(peer, false)
			if ports := r.portsSeen(true); ports[port] || len(ports) < fewestPorts {
				t.Errorf("resumed: got ports %v, want %d different ones", ports, flows)
			}
		})
	}
}

func TestPauseNeedsSomethingToPause(t *testing.T) {
	r := newRig(t)
	try := func(peer netip.Addr) (err error) {
		r.here.do(func() error {
			err = r.here.host.SetPaused(t.Context(), peer, true)
			return nil
		})
		return err
	}
	if err := try(netip.Addr{}); !errors.Is(err, ErrNotAttached) {
		t.Errorf("not attached: got error %v, want %v", err, ErrNotAttached)
	}
	r.here.attach(r.here.config())
	if err := try(netip.MustParseAddr("192.0.2.99")); err == nil || !strings.Contains(err.Error(), "no peer has the address 192.0.2.99") {
		t.Errorf("no such peer: got error %v, want an error", err)
	}
	expect.NoError(t, try(netip.MustParseAddr("::ffff:192.0.2.2")))
}
