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
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/test/expect"
)

// upgradable is a lab with ropewalk on the left, whose daemon can be replaced by another one.
type upgradable struct {
	*lab
	flags   []string
	current *daemon
	stop    func() error
	before  *wgtypes.Device // the configuration before the first upgrade
}

// startUpgradable starts both sides. The left one has settings that an upgrade could lose: a preshared key, a mark and a keepalive.
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
	expect.NoError(t, u.left.configure(wgtypes.Config{FirewallMark: &mark, Peers: []wgtypes.PeerConfig{
		{PublicKey: u.right.key.PublicKey(), UpdateOnly: true, PersistentKeepaliveInterval: &keepalive},
	}}))
	u.before = u.left.settings(t)
	return u
}

func (u *upgradable) launch(t *testing.T, h *host, more []string, ifname string) {
	t.Helper()
	argv := append([]string{ropewalkBinary.Need(t), "run"}, u.flags...)
	u.current, u.stop = launch(t, h, nil, append(append(argv, more...), ifname)...)
}

// replaceDaemon starts another daemon that takes over the interface, and waits until the old one exits without an error.
func (u *upgradable) replaceDaemon(t *testing.T) {
	t.Helper()
	before := u.current
	u.launch(t, u.left.host, []string{"--takeover"}, u.left.ifname)
	select {
	case <-before.exited:
	case <-time.After(patience):
		t.Fatalf("%s still runs after another daemon took over", before)
	}
	if before.err != nil {
		t.Fatalf("%s: got %v, want nil", before, before.err)
	}
	if u.current.hasExited() {
		t.Fatalf("%s did not take over", u.current)
	}
}

// requestTakeover requests a takeover from the daemon, as its successor does, and returns the connection.
func (u *upgradable) requestTakeover(t *testing.T) *net.UnixConn {
	t.Helper()
	client, err := uapi.Dial(u.left.ifname)
	expect.NoError(t, err)
	conn, err := client.RequestHandover()
	expect.NoError(t, err)
	expect.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	return conn
}

// descriptors returns the number of file descriptors that the daemon has open, without those of send groups: sockets bound to 255.255.255.0/24,
// of which the daemon opens a group when it first needs it.
func (u *upgradable) descriptors(t *testing.T) int {
	t.Helper()
	process := fmt.Sprintf("/proc/%d", u.current.cmd.Process.Pid)
	group := map[string]bool{}
	for _, name := range []string{"udp", "udp6"} {
		table, err := os.ReadFile(filepath.Join(process, "net", name))
		expect.NoError(t, err)
		for line := range strings.Lines(string(table)) {
			if f := strings.Fields(line); len(f) > 9 && sendGroupAddress.MatchString(f[1]) {
				group["socket:["+f[9]+"]"] = true
			}
		}
	}
	files, err := filepath.Glob(process + "/fd/*")
	expect.NoError(t, err)
	n := 0
	for _, file := range files {
		if target, err := os.Readlink(file); err == nil && !group[target] {
			n++
		}
	}
	return n
}

// sendGroupAddress matches a local address in 255.255.255.0/24, and its port, in /proc/PID/net/udp and udp6 of a little-endian machine.
var sendGroupAddress = regexp.MustCompile(`^(0000000000000000FFFF0000)?[[:xdigit:]]{2}FFFFFF:`)

// stream is a TCP connection through the tunnel. Its sender writes until the test ends.
type stream struct {
	conns [2]net.Conn
	got   atomic.Int64
	ended chan error
}

func newStream(t *testing.T, from, to *tunnel, v6 bool) *stream {
	t.Helper()
	s := &stream{ended: make(chan error, 2)}
	var l net.Listener
	expect.NoError(t, to.host.do(func() (err error) {
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
	expect.NoError(t, from.host.do(func() (err error) {
		s.conns[0], err = net.DialTimeout("tcp", l.Addr().String(), patience)
		return err
	}))
	expect.NoError(t, <-accepted)
	go func() {
		block := make([]byte, 64<<10)
		for {
			if _, err := s.conns[0].Write(block); err != nil {
				s.ended <- err
				return
			}
			time.Sleep(2 * time.Millisecond) // limits the load, because other tests run in parallel
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

// wantProgress waits until another MiB has arrived.
func (s *stream) wantProgress(t *testing.T) {
	t.Helper()
	const more = 1 << 20
	want := s.got.Load() + more
	expect.EventuallyNoError(t, "more data on the connection", func() error {
		select {
		case err := <-s.ended:
			t.Fatalf("the connection broke: %v", err)
		default:
		}
		if n := s.got.Load(); n < want {
			return fmt.Errorf("got %d bytes, want %d", n, want)
		}
		return nil
	})
}

func wantProgressOnAll(t *testing.T, streams []*stream) {
	t.Helper()
	for _, s := range streams {
		s.wantProgress(t)
	}
}

// counters are the byte and packet counters that monitoring reads.
type counters struct{ rx, tx, lanes float64 }

func countersOf(t *testing.T, x *tunnel) (n counters) {
	t.Helper()
	c, err := uapi.Dial(x.ifname)
	expect.NoError(t, err)
	defer c.Close()
	status, err := c.Status()
	expect.NoError(t, err)
	if len(status.Peers) != 1 {
		t.Fatalf("got %d peers, want 1", len(status.Peers))
	}
	var stats struct {
		Lanes []struct {
			Tx float64 `json:"tx_packets"`
			Rx float64 `json:"rx_packets"`
		} `json:"lanes"`
	}
	expect.NoError(t, c.Stats(&stats))
	for _, l := range stats.Lanes {
		n.lanes += l.Tx + l.Rx
	}
	n.rx, n.tx = float64(status.Peers[0].RxBytes), float64(status.Peers[0].TxBytes)
	return n
}

func (c counters) wantNotBelow(t *testing.T, before counters) {
	t.Helper()
	if c.rx < before.rx || c.tx < before.tx || c.lanes < before.lanes {
		t.Errorf("counters decreased from %+v to %+v", before, c)
	}
}

// TestConnectionsSurviveTenUpgrades checks that TCP connections, the interface and its configuration survive, and that no file
// descriptor leaks.
func TestConnectionsSurviveTenUpgrades(t *testing.T) {
	requireTUN(t)
	t.Parallel()
	for _, right := range []implementation{wireguardGo, ropewalk} { // not the kernel: its virtual machines are too slow for this test
		t.Run("with "+right.name, func(t *testing.T) {
			t.Parallel()
			forBothFamilies(t, func(t *testing.T, v6 bool) {
				t.Parallel()
				u := startUpgradable(t, right, v6, "--lanes", "2")
				streams := []*stream{newStream(t, u.left, u.right, v6), newStream(t, u.right, u.left, !v6)}
				index := u.left.index(t)
				before, first := countersOf(t, u.left), 0
				for n := range 10 {
					wantProgressOnAll(t, streams)
					u.replaceDaemon(t)
					wantProgressOnAll(t, streams)
					now := countersOf(t, u.left)
					now.wantNotBelow(t, before)
					before = now
					if n < 5 { // some descriptors are opened late, and those of spread when the peer has answered
						if right.name == ropewalk.name {
							expect.EventuallyNoError(t, "spread after an upgrade", func() error { return u.left.checkSpread(t) })
						}
						first = max(first, u.descriptors(t))
					}
				}
				if now := u.left.index(t); now != index {
					t.Errorf("interface index %d, want %d", now, index)
				}
				expect.EventuallyNoError(t, "no more descriptors than after the first upgrades", func() error {
					if n := u.descriptors(t); n > first {
						return fmt.Errorf("got %d descriptors, want at most %d", n, first)
					}
					return nil
				})
				u.wantUnchanged(t)
			})
		})
	}
}

// TestConnectionsSurviveUpgradesOverXDP checks that data messages use AF_XDP again after the upgrades.
func TestConnectionsSurviveUpgradesOverXDP(t *testing.T) {
	requireTUN(t)
	needXDP(t)
	t.Parallel()
	u := startUpgradable(t, ropewalk, false, "--lanes", "1", "--underlay", "xdp")
	streams := []*stream{newStream(t, u.left, u.right, false), newStream(t, u.right, u.left, true)}
	before := countersOf(t, u.left)
	for range 3 {
		wantProgressOnAll(t, streams)
		u.replaceDaemon(t)
		now := countersOf(t, u.left)
		now.wantNotBelow(t, before)
		before = now
	}
	wantProgressOnAll(t, streams)
	expect.EventuallyNoError(t, "AF_XDP after the upgrades", func() error {
		w, err := u.left.readDataPath(t)
		if err == nil && w.Path != "xdp" {
			err = fmt.Errorf("the data path is %s: %s", w.Path, w.Reason)
		}
		return err
	})
	u.wantUnchanged(t)
}

// index returns the interface index.
func (x *tunnel) index(t *testing.T) int {
	t.Helper()
	link, err := x.host.nl.LinkByName(x.ifname)
	expect.NoError(t, err)
	return link.Attrs().Index
}

// settings returns the interface's configuration, without counters and handshake times.
func (x *tunnel) settings(t *testing.T) *wgtypes.Device {
	t.Helper()
	d, err := x.read()
	expect.NoError(t, err)
	for i := range d.Peers {
		p := &d.Peers[i]
		p.LastHandshakeTime, p.ReceiveBytes, p.TransmitBytes = time.Time{}, 0, 0
		slices.SortFunc(p.AllowedIPs, func(a, b net.IPNet) int { return strings.Compare(a.String(), b.String()) })
	}
	return d
}

// wantUnchanged waits until the left side has the configuration from before the upgrades.
func (u *upgradable) wantUnchanged(t *testing.T) {
	t.Helper()
	expect.EventuallyNoError(t, "the configuration from before the upgrades", func() error {
		if diff := cmp.Diff(u.before, u.left.settings(t)); diff != "" { // an endpoint may change for a moment
			return errors.New(diff)
		}
		return nil
	})
}

// TestTunnelSurvivesFailedUpgrade lets the successor fail in each state of the takeover protocol.
func TestTunnelSurvivesFailedUpgrade(t *testing.T) {
	requireTUN(t)
	t.Parallel()
	for _, tc := range []struct {
		name string
		fail func(c *net.UnixConn) error
	}{
		{"before reading the offer", func(*net.UnixConn) error { return nil }},
		{"after reading the offer", func(c *net.UnixConn) error { return readOffer(c) }},
		{"with an invalid answer", func(c *net.UnixConn) error { return answers(c, "X") }},
		{"before reading the snapshot", func(c *net.UnixConn) error { return errors.Join(readOffer(c), writeByte(c, 'P')) }},
		{"after reading the snapshot", func(c *net.UnixConn) error { return answers(c, "P") }},
		{"with an invalid message instead of take", func(c *net.UnixConn) error { return errors.Join(answers(c, "P"), writeByte(c, 'R')) }},
		{"before reading the descriptors", func(c *net.UnixConn) error { return errors.Join(answers(c, "P"), writeByte(c, 'T')) }},
		{"after reading the descriptors", func(c *net.UnixConn) error { return answers(c, "PT") }},
		{"with an invalid message instead of ready", func(c *net.UnixConn) error { return errors.Join(answers(c, "PT"), writeByte(c, 'S')) }},
		{"after the handover", func(c *net.UnixConn) error {
			var reply [1]byte
			err := errors.Join(answers(c, "PT"), writeByte(c, 'R'))
			if err == nil {
				_, err = io.ReadFull(c, reply[:])
			}
			return err
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			u := startUpgradable(t, wireguardGo, false, "--lanes", "2")
			s := newStream(t, u.left, u.right, false)
			s.wantProgress(t)
			before := countersOf(t, u.left)
			conn := u.requestTakeover(t)
			err := tc.fail(conn)
			expect.NoError(t, errors.Join(err, conn.Close()))
			s.wantProgress(t)
			countersOf(t, u.left).wantNotBelow(t, before)
			u.replaceDaemon(t) // a later upgrade succeeds
			s.wantProgress(t)
			u.wantUnchanged(t)
		})
	}
}

// TestUpgradeCommandReplacesRunningDaemon checks that the running daemon starts its successor itself, and that it continues if the
// successor does not take over.
func TestUpgradeCommandReplacesRunningDaemon(t *testing.T) {
	requireTUN(t)
	t.Parallel()
	u := startUpgradable(t, wireguardGo, false, "--lanes", "2")
	s := newStream(t, u.right, u.left, true)
	s.wantProgress(t)
	c, err := uapi.Dial(u.left.ifname)
	expect.NoError(t, err)
	defer c.Close()
	for _, program := range []string{"/bin/false", "/nonexistent", "relative"} {
		if err := c.Upgrade(program); err == nil {
			t.Errorf("upgrading to %s succeeded", program)
		}
		s.wantProgress(t)
	}
	first := u.current.cmd.Process.Pid
	u.left.stop = func() error { return u.left.delete() } // the test does not know the new daemon's process
	out, err := exec.Command(ropewalkBinary.Need(t), "upgrade", u.left.ifname).CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Fatalf("%v: got %s", err, out)
	}
	s.wantProgress(t)
	expect.EventuallyNoError(t, "the old daemon to exit", func() error {
		if err := unix.Kill(first, 0); !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("process %d still exists: %w", first, err)
		}
		return nil
	})
	u.wantUnchanged(t)
}

// TestConcurrentTakeoverIsRefused requests a takeover while another one is in progress, which fails with EBUSY.
func TestConcurrentTakeoverIsRefused(t *testing.T) {
	requireTUN(t)
	t.Parallel()
	u := startUpgradable(t, wireguardGo, false, "--lanes", "2")
	first := u.requestTakeover(t)
	expect.NoError(t, readOffer(first))
	second := u.requestTakeover(t)
	answer := make([]byte, len("errno=-16"))
	_, err := io.ReadFull(second, answer)
	expect.NoError(t, err)
	if err := uapi.ParseRefusal(answer); !errors.Is(err, unix.EBUSY) {
		t.Errorf("the second request got %q, want EBUSY", answer)
	}
	expect.NoError(t, first.CloseWrite())
	_, err = io.Copy(io.Discard, first) // until the daemon has ended the first takeover
	expect.NoError(t, errors.Join(err, first.Close(), second.Close()))
	u.replaceDaemon(t)
	s := newStream(t, u.left, u.right, false)
	s.wantProgress(t)
	u.wantUnchanged(t)
}

// TestRenamedInterfaceSurvivesRepeatedUpgrades upgrades an interface whose control socket still has the original name.
func TestRenamedInterfaceSurvivesRepeatedUpgrades(t *testing.T) {
	requireTUN(t)
	t.Parallel()
	u := startUpgradable(t, wireguardGo, false, "--lanes", "2")
	s := newStream(t, u.left, u.right, false)
	link, err := u.left.host.nl.LinkByName(u.left.ifname)
	expect.NoError(t, err)
	expect.NoError(t, u.left.host.nl.LinkSetAlias(link, "kept"))
	expect.NoError(t, u.left.host.nl.LinkSetName(link, u.left.ifname+"x"))
	for range 3 {
		s.wantProgress(t)
		u.replaceDaemon(t)
	}
	s.wantProgress(t)
	u.wantUnchanged(t)
}

// delete deletes the interface, whose daemon then exits.
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

// answers reads the offer and sends the messages. After Prepare and after Take it reads the daemon's descriptors.
func answers(c *net.UnixConn, messages string) error {
	err := readOffer(c)
	for _, m := range []byte(messages) {
		err = errors.Join(err, writeByte(c, m))
		if err == nil && m != 'X' {
			b := make([]byte, 5) // the number of descriptors, and the byte that carries them; the kernel closes the unread ones
			_, err = io.ReadFull(c, b)
		}
	}
	return err
}

func writeByte(c *net.UnixConn, b byte) error {
	_, err := c.Write([]byte{b})
	return err
}
