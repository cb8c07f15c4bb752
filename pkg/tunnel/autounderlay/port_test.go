// SPDX-License-Identifier: Apache-2.0

package autounderlay

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/measurement"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/xdp"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/test/expect"
)

const (
	byUDP = config.UnderlayUDP
	byXDP = config.UnderlayXDP
)

// listeners counts the netlink sockets at here that subscribe to changes of the network.
func (s *testNet) listeners() (n int) {
	s.Helper()
	expect.NoError(s, s.here.Do(func() error {
		b, err := os.ReadFile("/proc/thread-self/net/netlink")
		for line := range strings.Lines(string(b)) {
			// Columns: sk Eth Pid Groups. The kernel's own sockets have Pid 0.
			if f := strings.Fields(line); len(f) > 3 && f[1] == "0" && f[2] != "0" && strings.Trim(f[3], "0") != "" {
				n++
			}
		}
		return err
	}))
	return n
}

// someLanes is a port of which only the number of lanes matters.
type someLanes struct {
	underlay.Port
	n int
}

func (l someLanes) Lanes() int { return l.n }

func TestLaneChangeLogMatchesReadyLanes(t *testing.T) {
	why := errors.New("lane 3: no queue")
	for _, c := range []struct {
		ready int
		why   error
		want  string
	}{
		{4, nil, `level=INFO msg="data messages use AF_XDP" device=eth0 lanes=4`},
		{3, why, `level=WARN msg="AF_XDP opened for some lanes only, the others use UDP sockets until a retry succeeds" device=eth0 xdp_lanes=3 lanes=4 reason="lane 3: no queue"`},
		{0, why, `level=WARN msg="AF_XDP unavailable, using UDP sockets until a retry succeeds" device=eth0 reason="lane 3: no queue"`},
	} {
		var log bytes.Buffer
		p := &Port{
			config: Config{UDP: someLanes{n: 4}, Log: slog.New(slog.NewTextHandler(&log, nil))},
			bound:  bound{wanted: xdp.Binding{Device: "eth0"}},
		}
		p.onLanesChanged(c.ready, c.why)
		if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, c.want) {
			t.Errorf("%d lanes ready: got log %q, want %q", c.ready, got, c.want)
		}
	}
}

func TestXDPIsUsedOnceGuarded(t *testing.T) {
	requireXDP(t)
	s := newTestNet(t)
	s.open(byXDP, "", slog.DiscardHandler)
	s.awaitMessage("a message before the guard")
	if r := s.port.Report(); r.Path != byUDP || r.Mode != byXDP || r.Reason != notYet || r.Device != "" || r.XDP != nil || r.Events != nil {
		t.Errorf("before the guard: %+v", r)
	}
	if s.attached(s.dev) != 0 {
		t.Errorf("before the guard: got program %d, want 0", s.attached(s.dev))
	}
	s.await("the end of the subscription of the last choice", func() bool { return s.listeners() == 0 })
	s.port.SetPeers(s.peers)
	r := s.awaitPath(byXDP)
	if r.Mode != byXDP || r.Device != s.dev || r.How != "copy" || r.Lanes != 1 || r.Reason != asConfigured || len(r.XDP) != 1 || r.XDP[0].Error != "" {
		t.Errorf("after SetGuarded: got %+v, want AF_XDP in copy mode on one lane", r)
	}
	if s.attached(s.dev) == 0 {
		t.Error("got no XDP program attached")
	}
	s.await("messages through AF_XDP", func() bool {
		s.awaitMessage("a message")
		r = s.port.Report()
		return r.XDP[0].Received > 0 && r.Events[programs.ClassifySocket.String()] > 0
	})
	s.await("a message sent through AF_XDP", func() bool {
		s.send(1)
		return s.port.Report().XDP[0].Sent > 0
	})
	to := netip.AddrPortFrom(hereAt.Addr(), s.port.LocalPort())
	s.await("the drop of an unknown sender's message", func() bool {
		_, err := s.peer.WriteToUDPAddrPort(message(index+1, 1), to)
		expect.NoError(t, err)
		return s.port.Report().Drops[drop.RXUnknownIndex.String()] > 0
	})
	expect.NoError(t, s.port.Close())
	if s.attached(s.dev) != 0 {
		t.Error("the program is still attached")
	}
	if r := s.port.Report(); r.Path != byUDP || r.Lanes != 0 || r.Drops[drop.RXUnknownIndex.String()] == 0 {
		t.Errorf("closed: %+v", r)
	}
	s.peers.AddIndex(5) // by callers that do not know of the Close yet
	s.peers.RemoveSource(farEndpoint)
	s.port.SetMode(byUDP)
}

func TestModeUDPReleasesProgramAndSubscriptions(t *testing.T) {
	s := newXDPTestNet(t)
	s.await("messages through AF_XDP", func() bool {
		s.awaitMessage("a message")
		return s.port.Report().Events[programs.ClassifySocket.String()] > 0
	})
	before := s.port.Report()
	s.port.SetMode(byUDP)
	released := func() bool { return s.attached(s.dev) == 0 && s.listeners() == 0 }
	s.await("release of program and subscriptions", released)
	r := s.awaitPath(byUDP)
	if r.Mode != byUDP || r.Reason != asConfigured || r.Device != "" || r.How != "" || r.Lanes != 0 {
		t.Errorf("got %+v", r)
	}
	socket := programs.ClassifySocket.String()
	if r.Events[socket] < before.Events[socket] || len(r.XDP) != 1 || r.XDP[0].Received < before.XDP[0].Received {
		t.Errorf("counters decreased from %+v to %+v", before, r)
	}
	s.awaitMessage("a message through UDP")
	s.peers.AddSource(hereEndpoint)
	s.port.EndpointAdded(farEndpoint)
	s.port.SetMode(byUDP)
	s.await("release after the new choice", released)
	s.port.SetMode(byXDP)
	s.awaitPath(byXDP)
	if r := s.port.Report(); r.Events[socket] < before.Events[socket] {
		t.Errorf("counters decreased from %+v to %+v", before, r)
	}
	s.port.SetMode(config.UnderlayAuto)
	r = s.awaitPath(byUDP)
	s.await("the program is off", func() bool { return s.attached(s.dev) == 0 })
	if r = s.port.Report(); r.Mode != config.UnderlayAuto || !strings.Contains(r.Reason, measurement.ErrNone.Error()) {
		t.Errorf("auto: got %+v, want Mode %v, Reason %v", r, config.UnderlayAuto, measurement.ErrNone)
	}
}

// save saves a measurement of the device, in which AF_XDP carries that many times of what UDP sockets carry.
func (s *testNet) save(factor float64) {
	s.Helper()
	c := measurement.Comparison{UDP: measurement.Cost{Gbps: 1, NsPerPacket: 1}, XDP: measurement.Cost{Gbps: factor, NsPerPacket: 1 / factor}}
	r := measurement.Result{Device: s.dev, Mode: measurement.Copy, Datagrams: c, Trains: c}
	expect.NoError(s, s.here.Do(func() (err error) {
		r.Conditions, err = measurement.ReadConditions(s.dev)
		return err
	}))
	expect.NoError(s, measurement.Save(s.dir, &r))
}

func TestAutoFollowsMeasurementOfDevice(t *testing.T) {
	requireXDP(t)
	s := newTestNet(t)
	log := &logRecorder{Handler: slog.DiscardHandler}
	s.open(config.UnderlayAuto, "", log)
	s.port.SetPeers(s.peers)
	is := func(device string, path config.UnderlayMode, reason string) func() bool {
		return func() bool {
			r := s.port.Report()
			return r.Path == path && r.Device == device && strings.Contains(r.Reason, reason)
		}
	}
	s.await("UDP without a measurement", is("", byUDP, measurement.ErrNone.Error()))
	s.await("no subscription", func() bool { return s.listeners() == 0 })
	for _, step := range []struct {
		factor float64
		path   config.UnderlayMode
	}{{1.5, byXDP}, {0.9, byUDP}, {2, byXDP}} {
		s.save(step.factor)
		s.port.SetMode(config.UnderlayAuto) // a new choice
		s.await("the path that was better", is(s.dev, step.path, "measured on "+s.dev))
	}
	s.awaitMessage("a message through AF_XDP")
	expect.NoError(t, os.WriteFile(measurement.Path(s.dir, s.dev), []byte("{}"), 0o644))
	s.port.SetMode(config.UnderlayAuto)
	s.await("UDP with an unreadable measurement", is(s.dev, byUDP, "reading the measurement of "+s.dev))
}

func TestFirstEndpointLeadsToDevice(t *testing.T) {
	requireXDP(t)
	s := newTestNet(t)
	s.open(byXDP, "", slog.DiscardHandler)
	s.peers.RemoveSource(farEndpoint)
	s.port.SetPeers(s.peers)
	s.await("the reason", func() bool { return strings.Contains(s.port.Report().Reason, errNoPeers.Error()) })
	s.peers.AddSource(farEndpoint)
	s.port.EndpointAdded(farEndpoint)
	s.awaitPath(byXDP)
	s.awaitMessage("a message through AF_XDP")
}

// TestModeChangesUnderTraffic sends in both directions. Each batch arrives before the next is sent, unless the mode
// changes meanwhile.
func TestModeChangesUnderTraffic(t *testing.T) {
	requireXDP(t)
	const batches, batch, changes = 20, 16, 8
	s := newTestNet(t)
	s.open(byXDP, "", slog.DiscardHandler)
	s.port.SetPeers(s.peers)
	out := s.recordReceived()
	in := &numbers{seen: map[uint32]bool{}}
	go func() {
		for n := range s.got {
			in.add(n)
		}
	}()
	to := netip.AddrPortFrom(hereAt.Addr(), s.port.LocalPort())
	next := uint32(0)
	var lostIn, lostOut int // estimates
	exchange := func() {
		for range batch {
			next++
			s.send(next)
			_, err := s.peer.WriteToUDPAddrPort(message(index, next), to)
			expect.NoError(t, err)
		}
		late := time.Now().Add(100 * time.Millisecond)
		for in.count()+lostIn < int(next) || out.count()+lostOut < int(next) {
			if time.Now().After(late) {
				lostIn, lostOut = int(next)-in.count(), int(next)-out.count()
			}
			time.Sleep(50 * time.Microsecond)
		}
	}
	for i := range changes {
		mode := []config.UnderlayMode{byXDP, byUDP}[i%2]
		s.port.SetMode(mode)
		for more := batches; more > 0; {
			exchange()
			if s.port.Report().Path == mode {
				more--
			}
		}
	}
	exchange()
	sent := int(next)
	s.await("the last message at the peer", func() bool { return out.has(next) })
	lostIn, lostOut = sent-in.count(), sent-out.count()
	t.Logf("of %d messages %d were lost inbound and %d outbound; %d and %d were reordered", sent, lostIn, lostOut, in.overtaken(), out.overtaken())
	if lostIn > changes*batch || lostOut > changes*batch {
		t.Errorf("%d and %d of %d messages lost in %d changes", lostIn, lostOut, sent, changes)
	}
	if in.overtaken() > changes*batch || out.overtaken() > changes*batch {
		t.Errorf("%d and %d messages were reordered", in.overtaken(), out.overtaken())
	}
}

func TestModeChangesLeakNoResources(t *testing.T) {
	requireXDP(t)
	s := newTestNet(t)
	s.open(byXDP, "", slog.DiscardHandler)
	s.port.SetPeers(s.peers)
	open := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		expect.NoError(t, err)
		return len(list)
	}
	first := 0
	for i := range 6 {
		s.port.SetMode(byXDP)
		s.awaitPath(byXDP)
		s.port.SetMode(byUDP)
		s.awaitPath(byUDP)
		s.await("release of program and subscriptions", func() bool { return s.attached(s.dev) == 0 && s.listeners() == 0 })
		if i == 0 {
			first = open()
		}
	}
	s.await("no more descriptors than after the first", func() bool { return open() <= first })
}

// numbers records the numbers of received messages.
type numbers struct {
	mu   sync.Mutex
	seen map[uint32]bool
	last uint32
	late int
}

func (n *numbers) add(number uint32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.seen[number] = true
	if number < n.last {
		n.late++
	}
	n.last = max(n.last, number)
}

func (n *numbers) count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.seen)
}

func (n *numbers) overtaken() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.late
}

func (n *numbers) has(number uint32) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.seen[number]
}

// recordReceived records the messages that the peer receives.
func (s *testNet) recordReceived() *numbers {
	out := &numbers{seen: map[uint32]bool{}}
	go func() {
		b := make([]byte, 65535)
		for {
			n, err := s.peer.Read(b)
			if err != nil {
				return
			}
			if n >= 12 {
				out.add(uint32(b[8]) | uint32(b[9])<<8 | uint32(b[10])<<16)
			}
		}
	}()
	return out
}

func TestForeignXDPProgramIsKeptAndReported(t *testing.T) {
	requireXDP(t)
	s := newTestNet(t)
	remove := s.attachForeignProgram()
	stranger := s.attached(s.dev)
	log := &logRecorder{Handler: slog.DiscardHandler}
	s.open(byXDP, "", log)
	s.port.SetPeers(s.peers)
	s.await("the reason", func() bool {
		r := s.port.Report()
		return r.Path == byUDP && r.Device == s.dev && strings.Contains(r.Reason, "stranger") && r.Lanes == 0
	})
	s.awaitMessage("a message through UDP")
	if got := s.attached(s.dev); got != stranger {
		t.Errorf("program %d is attached, want %d", got, stranger)
	}
	s.await("the warning", func() bool { return log.has("WARN", "stranger") })
	remove()
	s.awaitPath(byXDP)
	s.await("the log line", func() bool { return log.has("INFO", "lanes=1") })
	s.awaitMessage("a message")
}

func TestSecondPortCannotUseSameDevice(t *testing.T) {
	s := newXDPTestNet(t)
	first := s.attached(s.dev)
	second := s.another(byXDP, "", slog.DiscardHandler)
	second.SetPeers(newPeers(farEndpoint))
	s.await("the reason", func() bool {
		r := second.Report()
		return r.Path == byUDP && strings.Contains(r.Reason, "classify") && strings.Contains(r.Reason, "already attached")
	})
	s.awaitMessage("a message at the first")
	if got := s.attached(s.dev); got != first {
		t.Errorf("program %d is attached, want %d", got, first)
	}
	expect.NoError(t, s.port.Close())
	s.await("AF_XDP at the second port", func() bool { return second.Report().Path == byXDP })
}

func TestLostDeviceIsReplacedByAnother(t *testing.T) {
	s := newXDPTestNet(t)
	s.link(s.dev, netlink.LinkDel)
	r := s.awaitPath(byUDP)
	s.await("the report without a device", func() bool {
		r = s.port.Report()
		return r.Device == "" && strings.Contains(r.Reason, errNoRoutes.Error())
	})
	next := s.cable(hereAt, farAt)
	r = s.awaitPath(byXDP)
	if r.Device != next {
		t.Errorf("got %+v, want %s", r, next)
	}
	s.awaitMessage("a message through the new device")
}

// logRecorder records the level and the attributes of each log line.
type logRecorder struct {
	slog.Handler
	mu    sync.Mutex
	lines []string
}

func (l *logRecorder) Enabled(context.Context, slog.Level) bool { return true }

func (l *logRecorder) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	line := r.Level.String()
	r.Attrs(func(a slog.Attr) bool {
		line += " " + a.String()
		return true
	})
	l.lines = append(l.lines, line)
	return nil
}

func (l *logRecorder) has(parts ...string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
lines:
	for _, line := range l.lines {
		for _, part := range parts {
			if !strings.Contains(line, part) {
				continue lines
			}
		}
		return true
	}
	return false
}

func TestConfiguredDeviceIsAwaited(t *testing.T) {
	requireXDP(t)
	s := newTestNet(t)
	log := &logRecorder{Handler: slog.DiscardHandler}
	s.open(byXDP, "cable1", log)
	s.port.SetPeers(s.peers)
	s.await("the reason", func() bool {
		r := s.port.Report()
		return r.Path == byUDP && r.Device == "" && strings.Contains(r.Reason, "cable1")
	})
	if !log.has("WARN", "cable1") || log.has("WARN", notYet) {
		t.Errorf("log: %q", log.lines)
	}
	if got := s.cable(netip.MustParsePrefix("198.51.100.1/24"), netip.MustParsePrefix("198.51.100.2/24")); got != "cable1" {
		t.Fatal(got)
	}
	if r := s.awaitPath(byXDP); r.Device != "cable1" || !log.has("INFO", "xdp", "cable1") {
		t.Errorf("%+v, log: %q", r, log.lines)
	}
	s.awaitMessage("a message through the other device")
}

func TestTooManyIndicesAdmitUnknownSenders(t *testing.T) {
	s := newXDPTestNet(t)
	first := s.attached(s.dev)
	for i := range uint32(maxCheckedIndices + 1) {
		s.peers.AddIndex(i)
	}
	s.await("another program", func() bool {
		r := s.port.Report()
		got := s.attached(s.dev)
		return r.Path == byXDP && got != 0 && got != first
	})
	to := netip.AddrPortFrom(hereAt.Addr(), s.port.LocalPort())
	s.await("an unknown sender's message", func() bool {
		_, err := s.peer.WriteToUDPAddrPort(message(index+1, 99), to)
		expect.NoError(t, err)
		select {
		case n := <-s.got:
			return n == 99
		case <-time.After(20 * time.Millisecond):
			return false
		}
	})
}

func TestLinkIsUsedAgainAfterFlap(t *testing.T) {
	s := newXDPTestNet(t)
	s.link(s.dev, netlink.LinkSetDown)
	s.awaitPath(byUDP)
	s.link(s.dev, netlink.LinkSetUp)
	s.awaitPath(byXDP)
	s.awaitMessage("a message")
	s.link(s.dev, func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1400) })
	s.awaitMessage("a message with another MTU")
	s.awaitPath(byXDP)
}

// TestCloseRacesWithOtherCalls is for the race detector.
func TestCloseRacesWithOtherCalls(t *testing.T) {
	requireXDP(t)
	s := newTestNet(t)
	for range 5 {
		p := s.another(byXDP, "", slog.DiscardHandler)
		peers := newPeers(farEndpoint)
		p.SetPeers(peers)
		stop := make(chan struct{})
		var users sync.WaitGroup
		for u := range uint32(2) {
			users.Go(func() {
				for i := u << 20; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					peers.AddIndex(i)
					peers.AddSource(endpointAt(byte(i)))
					p.EndpointAdded(farEndpoint)
					peers.RemoveIndex(i)
					peers.RemoveSource(endpointAt(byte(i)))
					p.Report()
					if i%64 == 0 {
						p.SetMode([]config.UnderlayMode{byXDP, byUDP}[i/64%2])
					}
				}
			})
		}
		time.Sleep(150 * time.Millisecond) // any duration is valid
		expect.NoError(t, p.Close())
		close(stop)
		users.Wait()
		if got := s.attached(s.dev); got != 0 {
			t.Fatalf("program %d is still attached", got)
		}
	}
}
