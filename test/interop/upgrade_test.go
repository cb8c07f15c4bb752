// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/ropewalk/ropewalk/pkg/uapi"
)

// upgradable is a lab whose left side is ropewalk, whose daemon may be replaced by others.
type upgradable struct {
	*lab
	flags []string
	now   *daemon
	stop  func() error
	was   *wgtypes.Device // as it is configured
}

// startUpgradable starts both sides, the left one with a preshared key, a mark and a keepalive: what an upgrade might lose.
func startUpgradable(t *testing.T, right implementation, v6 bool, flags ...string) *upgradable {
	t.Helper()
	u := &upgradable{flags: flags}
	left := ropewalk
	left.start = func(t *testing.T, h *host, ifname string) func() error {
		u.launch(t, h, nil, ifname)
		return func() error { return u.stop() }
	}
	left.need(t)
	right.need(t)
	u.lab = newLab(t, pairing{left, right}, v6)
	u.psk = presharedKey(t)
	u.start(t)
	mark, keepalive := 0x77, 25*time.Second
	must(t, u.left.configure(wgtypes.Config{FirewallMark: &mark, Peers: []wgtypes.PeerConfig{
		{PublicKey: u.right.key.PublicKey(), UpdateOnly: true, PersistentKeepaliveInterval: &keepalive},
	}}))
	u.was = u.left.settings(t)
	return u
}

func (u *upgradable) launch(t *testing.T, h *host, more []string, ifname string) {
	t.Helper()
	argv := append([]string{ropewalkBinary.Need(t), "run"}, u.flags...)
	u.now, u.stop = launch(t, h, nil, append(append(argv, more...), ifname)...)
}

// takeOver has another daemon serve the interface, and waits until the one before has ended well.
func (u *upgradable) takeOver(t *testing.T) {
	t.Helper()
	before := u.now
	u.launch(t, u.left.host, []string{"--takeover"}, u.left.ifname)
	select {
	case <-before.exited:
	case <-time.After(patience):
		t.Fatalf("%s goes on after another daemon has taken over", before)
	}
	if before.err != nil {
		t.Fatalf("%s: %v", before, before.err)
	}
	if u.now.hasExited() {
		t.Fatalf("%s has not taken over", u.now)
	}
}

// ask asks the daemon for the tunnel, as one that takes over does.
func (u *upgradable) ask(t *testing.T) *net.UnixConn {
	t.Helper()
	client, err := uapi.Dial(u.left.ifname)
	must(t, err)
	conn, err := client.TakeOver()
	must(t, err)
	must(t, conn.SetDeadline(time.Now().Add(patience)))
	return conn
}

// descriptors is how many the daemon has open.
func (u *upgradable) descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", u.now.cmd.Process.Pid))
	must(t, err)
	return len(entries)
}

// stream is a TCP connection through the tunnel whose sender never stops.
type stream struct {
	conns [2]net.Conn
	got   atomic.Int64
	ended chan error
}

func newStream(t *testing.T, from, to *tunnel, v6 bool) *stream {
	t.Helper()
	s := &stream{ended: make(chan error, 2)}
	var l net.Listener
	must(t, to.host.do(func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(to.inner(v6), 0).String())
		return err
	}))
	t.Cleanup(func() { l.Close() })
	accepted := make(chan error, 1)
	go func() {
		var err error
		s.conns[1], err = l.Accept()
		accepted <- err
	}()
	must(t, from.host.do(func() (err error) {
		s.conns[0], err = net.DialTimeout("tcp", l.Addr().String(), patience)
		return err
	}))
	must(t, <-accepted)
	go func() {
		block := make([]byte, 64<<10)
		for {
			if _, err := s.conns[0].Write(block); err != nil {
				s.ended <- err
				return
			}
			time.Sleep(2 * time.Millisecond) // a load, not a flood: other tests run too
		}
	}()
	go func() {
		block := make([]byte, 64<<10)
		for {
			n, err := s.conns[1].Read(block)
			s.got.Add(int64(n))
			if err != nil {
				s.ended <- err
				return
			}
		}
	}()
	t.Cleanup(func() {
		for _, c := range s.conns {
			c.Close()
		}
	})
	return s
}

// flows waits until another so many bytes have come.
func (s *stream) flows(t *testing.T) {
	t.Helper()
	const more = 1 << 20
	want := s.got.Load() + more
	eventually(t, "the connection to carry more", patience, func() error {
		select {
		case err := <-s.ended:
			t.Fatalf("the connection is lost: %v", err)
		default:
		}
		if n := s.got.Load(); n < want {
			return fmt.Errorf("%d bytes, want %d", n, want)
		}
		return nil
	})
}

func flow(t *testing.T, streams []*stream) {
	t.Helper()
	for _, s := range streams {
		s.flows(t)
	}
}

// counters are what graphs are drawn of.
type counters struct{ rx, tx, lanes float64 }

func countersOf(t *testing.T, x *tunnel) (n counters) {
	t.Helper()
	c, err := uapi.Dial(x.ifname)
	must(t, err)
	defer c.Close()
	status, err := c.Status()
	must(t, err)
	if len(status.Peers) != 1 {
		t.Fatalf("%d peers, want 1", len(status.Peers))
	}
	var stats struct {
		Lanes []struct {
			Tx float64 `json:"tx_packets"`
			Rx float64 `json:"rx_packets"`
		} `json:"lanes"`
	}
	must(t, c.Stats(&stats))
	for _, l := range stats.Lanes {
		n.lanes += l.Tx + l.Rx
	}
	n.rx, n.tx = float64(status.Peers[0].RxBytes), float64(status.Peers[0].TxBytes)
	return n
}

func (n counters) notBefore(t *testing.T, before counters) {
	t.Helper()
	if n.rx < before.rx || n.tx < before.tx || n.lanes < before.lanes {
		t.Errorf("counters went back from %+v to %+v", before, n)
	}
}

// TestConnectionsLiveThroughTenUpgradesInARow wants the interface and all that is configured to stay as well, and no descriptor to be
// left over.
func TestConnectionsLiveThroughTenUpgradesInARow(t *testing.T) {
	needs(t)
	t.Parallel()
	for _, right := range []implementation{wireguardGo, ropewalk} { // virtual machines, which have the kernel's, are too slow for this
		t.Run("with "+right.name, func(t *testing.T) {
			t.Parallel()
			forBothFamilies(t, func(t *testing.T, v6 bool) {
				t.Parallel()
				u := startUpgradable(t, right, v6, "--lanes", "2")
				streams := []*stream{newStream(t, u.left, u.right, v6), newStream(t, u.right, u.left, !v6)}
				index := u.left.index(t)
				before, first := countersOf(t, u.left), 0
				for n := range 10 {
					flow(t, streams)
					u.takeOver(t)
					flow(t, streams)
					now := countersOf(t, u.left)
					now.notBefore(t, before)
					before = now
					if n < 5 { // some are opened a moment after the others
						first = max(first, u.descriptors(t))
					}
				}
				if now := u.left.index(t); now != index {
					t.Errorf("the interface is another one: %d, not %d", now, index)
				}
				eventually(t, "as many descriptors as after the first upgrades", patience, func() error {
					if n := u.descriptors(t); n > first {
						return fmt.Errorf("%d, not %d", n, first)
					}
					return nil
				})
				u.wantSame(t)
			})
		})
	}
}

// TestConnectionsLiveThroughUpgradesOverExpress has AF_XDP carry data messages before and after.
func TestConnectionsLiveThroughUpgradesOverExpress(t *testing.T) {
	needs(t)
	needExpress(t)
	t.Parallel()
	u := startUpgradable(t, ropewalk, false, "--lanes", "1", "--underlay", "xdp")
	streams := []*stream{newStream(t, u.left, u.right, false), newStream(t, u.right, u.left, true)}
	before := countersOf(t, u.left)
	for range 3 {
		flow(t, streams)
		u.takeOver(t)
		now := countersOf(t, u.left)
		now.notBefore(t, before)
		before = now
	}
	flow(t, streams)
	eventually(t, "AF_XDP to be in use again", patience, func() error {
		w, err := u.left.readWay(t)
		if err == nil && w.Way != "xdp" {
			err = fmt.Errorf("the way is %s: %s", w.Way, w.Reason)
		}
		return err
	})
	u.wantSame(t)
}

// index is the number of the interface.
func (x *tunnel) index(t *testing.T) int {
	t.Helper()
	link, err := x.host.nl.LinkByName(x.ifname)
	must(t, err)
	return link.Attrs().Index
}

// settings is the interface without what changes by itself.
func (x *tunnel) settings(t *testing.T) *wgtypes.Device {
	t.Helper()
	d, err := x.read()
	must(t, err)
	for i := range d.Peers {
		p := &d.Peers[i]
		p.LastHandshakeTime, p.ReceiveBytes, p.TransmitBytes = time.Time{}, 0, 0
		slices.SortFunc(p.AllowedIPs, func(a, b net.IPNet) int { return strings.Compare(a.String(), b.String()) })
	}
	return d
}

// wantSame wants the left side to be configured as it was.
func (u *upgradable) wantSame(t *testing.T) {
	t.Helper()
	eventually(t, "what is configured is as it was", patience, func() error {
		if diff := cmp.Diff(u.was, u.left.settings(t)); diff != "" { // an endpoint may roam for a moment
			return errors.New(diff)
		}
		return nil
	})
}

// TestTunnelGoesOnWhereAnUpgradeFails has the new daemon fail at every point at which it can.
func TestTunnelGoesOnWhereAnUpgradeFails(t *testing.T) {
	needs(t)
	t.Parallel()
	for _, tc := range []struct {
		name string
		fail func(c *net.UnixConn) error
	}{
		{"before it has read anything", func(*net.UnixConn) error { return nil }},
		{"at the other's version", func(c *net.UnixConn) error { return readOffer(c) }},
		{"by saying nonsense", func(c *net.UnixConn) error { return say(c, 'X', false) }},
		{"before it has the descriptors", func(c *net.UnixConn) error { return say(c, 'T', false) }},
		{"when it has everything", func(c *net.UnixConn) error { return say(c, 'T', true) }},
		{"by saying nonsense instead of that it is ready", func(c *net.UnixConn) error {
			return errors.Join(say(c, 'T', true), writeByte(c, 'S'))
		}},
		{"when the tunnel is its", func(c *net.UnixConn) error {
			var word [1]byte
			err := errors.Join(say(c, 'T', true), writeByte(c, 'R'))
			if err == nil {
				_, err = io.ReadFull(c, word[:])
			}
			return err
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			u := startUpgradable(t, wireguardGo, false, "--lanes", "2")
			s := newStream(t, u.left, u.right, false)
			s.flows(t)
			before := countersOf(t, u.left)
			conn := u.ask(t)
			err := tc.fail(conn)
			must(t, errors.Join(err, conn.Close()))
			s.flows(t)
			countersOf(t, u.left).notBefore(t, before)
			u.takeOver(t) // it is as good as new
			s.flows(t)
			u.wantSame(t)
		})
	}
}

// TestUpgradeIsAskedOfTheDaemonThatRuns: it starts the new one itself, and goes on if that does not take over.
func TestUpgradeIsAskedOfTheDaemonThatRuns(t *testing.T) {
	needs(t)
	t.Parallel()
	u := startUpgradable(t, wireguardGo, false, "--lanes", "2")
	s := newStream(t, u.right, u.left, true)
	s.flows(t)
	c, err := uapi.Dial(u.left.ifname)
	must(t, err)
	defer c.Close()
	for _, program := range []string{"/bin/false", "/nonexistent", "relative"} {
		if err := c.Upgrade(program); err == nil {
			t.Errorf("%s has taken over", program)
		}
		s.flows(t)
	}
	first := u.now.cmd.Process.Pid
	u.left.stop = func() error { return u.left.delete() } // the test does not know the new daemon
	out, err := exec.Command(ropewalkBinary.Need(t), "upgrade", u.left.ifname).CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Fatalf("%v: %s", err, out)
	}
	s.flows(t)
	eventually(t, "the daemon that was upgraded to end", patience, func() error {
		if err := unix.Kill(first, 0); !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("process %d is still there: %w", first, err)
		}
		return nil
	})
	u.wantSame(t)
}

// TestOnlyOneDaemonAtATimeIsGivenTheTunnel has one dawdle while another asks.
func TestOnlyOneDaemonAtATimeIsGivenTheTunnel(t *testing.T) {
	needs(t)
	t.Parallel()
	u := startUpgradable(t, wireguardGo, false, "--lanes", "2")
	one := u.ask(t)
	must(t, readOffer(one))
	other := u.ask(t)
	answer := make([]byte, len("errno=-16"))
	_, err := io.ReadFull(other, answer)
	must(t, err)
	if err := uapi.Refusal(answer); !errors.Is(err, unix.EBUSY) {
		t.Errorf("the other one is told %q", answer)
	}
	must(t, one.CloseWrite())
	_, err = io.Copy(io.Discard, one) // until nobody is waited for any more
	must(t, errors.Join(err, one.Close(), other.Close()))
	u.takeOver(t)
	s := newStream(t, u.left, u.right, false)
	s.flows(t)
	u.wantSame(t)
}

// TestAnInterfaceThatWasRenamedIsUpgradedAgainAndAgain: its control socket keeps the name that it was started with.
func TestAnInterfaceThatWasRenamedIsUpgradedAgainAndAgain(t *testing.T) {
	needs(t)
	t.Parallel()
	u := startUpgradable(t, wireguardGo, false, "--lanes", "2")
	s := newStream(t, u.left, u.right, false)
	link, err := u.left.host.nl.LinkByName(u.left.ifname)
	must(t, err)
	must(t, u.left.host.nl.LinkSetAlias(link, "kept"))
	must(t, u.left.host.nl.LinkSetName(link, u.left.ifname+"x"))
	for range 3 {
		s.flows(t)
		u.takeOver(t)
	}
	s.flows(t)
	u.wantSame(t)
}

// delete deletes the interface, and so ends its daemon.
func (x *tunnel) delete() error {
	link, err := x.host.nl.LinkByName(x.ifname)
	if err != nil {
		return err
	}
	return x.host.nl.LinkDel(link)
}

const offerSize = 12

func readOffer(c *net.UnixConn) error {
	var offer [offerSize]byte
	_, err := io.ReadFull(c, offer[:])
	return err
}

// say answers an offer, and reads what the daemon has to give.
func say(c *net.UnixConn, word byte, read bool) error {
	if err := errors.Join(readOffer(c), writeByte(c, word)); err != nil || !read {
		return err
	}
	b := make([]byte, 5) // how many descriptors, and the byte that bears them; closed unseen
	_, err := io.ReadFull(c, b)
	return err
}

func writeByte(c *net.UnixConn, b byte) error {
	_, err := c.Write([]byte{b})
	return err
}
