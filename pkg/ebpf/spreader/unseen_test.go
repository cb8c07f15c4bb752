// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
)

// TestPeersThatAreNotSpreadToAreNotReported has messages that keep the listen port, and another peer whose messages leave from none of the tunnel's
// ports: only that one is reported.
func TestPeersThatAreNotSpreadToAreNotReported(t *testing.T) {
	pause := func(peer netip.Addr) func(r *rig) {
		return func(r *rig) { r.here.do(func() error { return r.here.host.SetPaused(t.Context(), peer, true) }) }
	}
	for name, c := range map[string]struct {
		prepare func(r *rig)
		size    int
	}{
		"silent":        {func(*rig) {}, 0},
		"all paused":    {pause(netip.Addr{}), 0},
		"paused":        {pause(thereAddr), 0},
		"fragments":     {func(*rig) {}, 1500},
		"paused, large": {pause(thereAddr), 1500},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			to, unseen := netip.AddrPortFrom(thereAddr, port), "192.0.2.3:51820"
			r.here.finder.set(wg(to.String(), unseen))
			r.here.watch(50 * time.Millisecond)
			expect.Eventually(t, "it is attached", func() bool { return r.here.status() != nil })
			c.prepare(r)
			sender, m := r.here.socket(port), append(message(1, 0), make([]byte, c.size)...)
			raw, err := sender.SyscallConn()
			expect.NoError(t, err)
			ctlErr := raw.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT) // as WireGuard
			})
			expect.NoError(t, errors.Join(err, ctlErr))
			sent := uint64(0)
			expect.Eventually(t, "the other peer is reported", func() bool {
				_, err := sender.WriteToUDPAddrPort(m, to)
				expect.NoError(t, err)
				next := wg(to.String(), unseen)
				sent += 1 << 20
				for i := range next.Peers {
					next.Peers[i].SentBytes = sent
				}
				r.here.finder.set(next)
				r.here.finder.set(next)
				p := problems(r.here.status())
				if strings.Contains(p, "sends to "+to.String()+", and nothing leaves") {
					t.Fatalf("the peer is reported: %s", p)
				}
				return strings.Contains(p, "sends to "+unseen+", and nothing leaves")
			})
		})
	}
}
