// SPDX-License-Identifier: Apache-2.0

package autounderlay

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
)

const (
	byUDP = config.UnderlayUDP
	byXDP = config.UnderlayXDP
)

// listeners counts the sockets at here that listen to changes of the network.
func (s *scene) listeners() (n int) {
	s.Helper()
	must(s, s.here.Do(func() error {
		b, err := os.ReadFile("/proc/thread-self/net/netlink")
		for line := range strings.Lines(string(b)) {
			// sk Eth Pid Groups ...; those of the kernel itself have no Pid
			if f := strings.Fields(line); len(f) > 3 && f[1] == "0" && f[2] != "0" && strings.Trim(f[3], "0") != "" {
				n++
			}
		}
		return err
	}))
	return n
}

func TestItGoesByUDPUntilGuardedAndByXDPFromThenOn(t *testing.T) {
	requireXDP(t)
	s := newScene(t)
	s.open(byXDP, "", slog.DiscardHandler)
	s.arrives("a message before the guard")
	if r := s.port.Report(); r.Path != byUDP || r.Mode != byXDP || r.Reason != notYet || r.Device != "" || r.XDP != nil || r.Events != nil {
		t.Errorf("before the guard: %+v", r)
	}
	if s.attached(s.dev) != 0 || s.listeners() != 0 {
		t.Errorf("before the guard: program %d, %d listeners", s.attached(s.dev), s.listeners())
	}
	s.port.SetGuarded()
	r := s.awaitWay(byXDP)
	if r.Mode != byXDP || r.Device != s.dev || r.How != "copy" || r.Lanes != 1 || r.Reason != asConfigured || len(r.XDP) != 1 || r.XDP[0].Error != "" {
		t.Errorf("then: %+v", r)
	}
	if s.attached(s.dev) == 0 {
		t.Error("no program")
	}
	s.await("messages by AF_XDP", func() bool {
		s.arrives("a message")
		r = s.port.Report()
		return r.XDP[0].Received > 0 && r.Events[programs.ClassifySocket.String()] > 0
	})
	s.await("a way out by AF_XDP", func() bool {
		s.send(1)
		return s.port.Report().XDP[0].Sent > 0
	})
	to := netip.AddrPortFrom(hereAt.Addr(), s.port.LocalPort())
	s.await("a stranger's message is refused", func() bool {
		_, err := s.peer.WriteToUDPAddrPort(message(index+1, 1), to)
		must(t, err)
		return s.port.Report().Drops[drop.RXUnknownIndex.String()] > 0
	})
	must(t, s.port.Close())
	if s.attached(s.dev) != 0 {
		t.Error("the program is left behind")
	}
	if r := s.port.Report(); r.Path != byUDP || r.Lanes != 0 || r.Drops[drop.RXUnknownIndex.String()] == 0 {
		t.Errorf("closed: %+v", r)
	}
	s.port.AddIndex(5) // by those who do not know yet
	s.port.RemoveSource(farAt.Addr())
	s.port.SetMode(byUDP)
}

func TestModeUDPLeavesNothingAndListensToNothing(t *testing.T) {
	s := newExpressScene(t)
	s.await("messages by AF_XDP", func() bool {
		s.arrives("a message")
		return s.port.Report().Events[programs.ClassifySocket.String()] > 0
	})
	before := s.port.Report()
	s.port.SetMode(byUDP)
	rest := func() bool { return s.attached(s.dev) == 0 && s.listeners() == 0 }
	s.await("rest", rest)
	r := s.awaitWay(byUDP)
	if r.Mode != byUDP || r.Reason != asConfigured || r.Device != "" || r.How != "" || r.Lanes != 0 {
		t.Errorf("%+v", r)
	}
	socket := programs.ClassifySocket.String()
	if r.Events[socket] < before.Events[socket] || len(r.XDP) != 1 || r.XDP[0].Received < before.XDP[0].Received {
		t.Errorf("counters went back from %+v to %+v", before, r)
	}
	s.arrives("a message by UDP")
	s.port.AddSource(hereAt.Addr()) // which has the choice made anew
	s.port.SetMode(byUDP)
	s.await("rest again", rest)
	s.port.SetMode(byXDP)
	s.awaitWay(byXDP)
	if r := s.port.Report(); r.Events[socket] < before.Events[socket] {
		t.Errorf("counters went back from %+v to %+v", before, r)
	}
	s.port.SetMode(config.UnderlayAuto)
	r = s.awaitWay(byUDP)
	s.await("the program is off", func() bool { return s.attached(s.dev) == 0 })
	if r = s.port.Report(); r.Mode != config.UnderlayAuto || r.Device != s.dev || r.Reason == asConfigured {
		t.Errorf("auto: %+v", r)
	}
}

// TestTheWayChangesUnderTraffic in both directions. Each batch arrives before the next is sent, unless the way changes meanwhile.
func TestTheWayChangesUnderTraffic(t *testing.T) {
	requireXDP(t)
	const batches, batch, changes = 20, 16, 8
	s := newScene(t)
	s.open(byXDP, "", slog.DiscardHandler)
	s.port.SetGuarded()
	out := s.hear()
	in := &numbers{seen: map[uint32]bool{}}
	go func() {
		for n := range s.got {
			in.add(n)
		}
	}()
	to := netip.AddrPortFrom(hereAt.Addr(), s.port.LocalPort())
	next := uint32(0)
	var lostIn, lostOut int // as it seems
	exchange := func() {
		for range batch {
			next++
			s.send(next)
			_, err := s.peer.WriteToUDPAddrPort(message(index, next), to)
			must(t, err)
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
	s.await("what the peer gets", func() bool { return out.has(next) })
	lostIn, lostOut = sent-in.count(), sent-out.count()
	t.Logf("of %d lost %d on the way in and %d on the way out; %d and %d came late", sent, lostIn, lostOut, in.overtaken(), out.overtaken())
	if lostIn > changes*batch || lostOut > changes*batch {
		t.Errorf("%d and %d of %d lost at %d changes", lostIn, lostOut, sent, changes)
	}
	if in.overtaken() > changes*batch || out.overtaken() > changes*batch {
		t.Errorf("%d and %d were overtaken", in.overtaken(), out.overtaken())
	}
}

func TestChangesOfTheWayLeaveNothingBehind(t *testing.T) {
	requireXDP(t)
	s := newScene(t)
	s.open(byXDP, "", slog.DiscardHandler)
	s.port.SetGuarded()
	open := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return len(list)
	}
	first := 0
	for i := range 6 {
		s.port.SetMode(byXDP)
		s.awaitWay(byXDP)
		s.port.SetMode(byUDP)
		s.awaitWay(byUDP)
		s.await("rest", func() bool { return s.attached(s.dev) == 0 && s.listeners() == 0 })
		if i == 0 {
			first = open()
		}
	}
	s.await("no more descriptors than after the first", func() bool { return open() <= first })
}

// numbers are those of messages that arrived.
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

// hear notes what the peer gets.
func (s *scene) hear() *numbers {
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

func TestAStrangersProgramIsLeftAloneAndReported(t *testing.T) {
	requireXDP(t)
	s := newScene(t)
	remove := s.obstruct()
	stranger := s.attached(s.dev)
	log := &levels{Handler: slog.DiscardHandler}
	s.open(byXDP, "", log)
	s.port.SetGuarded()
	s.await("the reason", func() bool {
		r := s.port.Report()
		return r.Path == byUDP && r.Device == s.dev && strings.Contains(r.Reason, "stranger") && r.Lanes == 0
	})
	s.arrives("a message all the same")
	if got := s.attached(s.dev); got != stranger {
		t.Errorf("program %d in the place of %d", got, stranger)
	}
	s.await("the warning", func() bool { return log.has("WARN", "stranger") })
	remove()
	s.awaitWay(byXDP)
	s.await("the news", func() bool { return log.has("INFO", "lanes=1") })
	s.arrives("a message")
}

func TestOneDeviceIsForOnePort(t *testing.T) {
	s := newExpressScene(t)
	first := s.attached(s.dev)
	second := s.another(byXDP, "", slog.DiscardHandler)
	second.AddSource(farAt.Addr())
	second.SetGuarded()
	s.await("the reason", func() bool {
		r := second.Report()
		return r.Path == byUDP && strings.Contains(r.Reason, "classify") && strings.Contains(r.Reason, "already attached")
	})
	s.arrives("a message at the first")
	if got := s.attached(s.dev); got != first {
		t.Errorf("program %d in the place of %d", got, first)
	}
	must(t, s.port.Close())
	s.await("the second takes its turn", func() bool { return second.Report().Path == byXDP })
}

func TestAnotherDeviceTakesThePlaceOfOneThatIsGone(t *testing.T) {
	s := newExpressScene(t)
	s.link(s.dev, netlink.LinkDel)
	r := s.awaitWay(byUDP)
	s.await("there is no device", func() bool {
		r = s.port.Report()
		return r.Device == "" && strings.Contains(r.Reason, errNoRoutes.Error())
	})
	next := s.cable(hereAt, farAt)
	r = s.awaitWay(byXDP)
	if r.Device != next {
		t.Errorf("%+v, want %s", r, next)
	}
	s.arrives("a message by the new one")
}

// levels notes the level of each line, and what it says.
type levels struct {
	slog.Handler
	mu    sync.Mutex
	lines []string
}

func (l *levels) Enabled(context.Context, slog.Level) bool { return true }

func (l *levels) Handle(_ context.Context, r slog.Record) error {
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

func (l *levels) has(parts ...string) bool {
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

func TestADeviceThatWasAskedForIsWaitedFor(t *testing.T) {
	requireXDP(t)
	s := newScene(t)
	log := &levels{Handler: slog.DiscardHandler}
	s.open(byXDP, "cable1", log)
	s.port.SetGuarded()
	s.await("the reason", func() bool {
		r := s.port.Report()
		return r.Path == byUDP && r.Device == "" && strings.Contains(r.Reason, "cable1")
	})
	if !log.has("WARN", "cable1") || log.has("WARN", notYet) {
		t.Errorf("said %q", log.lines)
	}
	if got := s.cable(netip.MustParsePrefix("198.51.100.1/24"), netip.MustParsePrefix("198.51.100.2/24")); got != "cable1" {
		t.Fatal(got)
	}
	if r := s.awaitWay(byXDP); r.Device != "cable1" || !log.has("INFO", "xdp", "cable1") {
		t.Errorf("%+v, said %q", r, log.lines)
	}
	s.arrives("a message by the other device")
}

func TestWithTooManyIndicesStrangersAreLetIn(t *testing.T) {
	s := newExpressScene(t)
	first := s.attached(s.dev)
	for i := range uint32(maxCheckedIndices + 1) {
		s.port.AddIndex(i)
	}
	s.await("another program", func() bool {
		r := s.port.Report()
		got := s.attached(s.dev)
		return r.Path == byXDP && got != 0 && got != first
	})
	to := netip.AddrPortFrom(hereAt.Addr(), s.port.LocalPort())
	s.await("a stranger's message", func() bool {
		_, err := s.peer.WriteToUDPAddrPort(message(index+1, 99), to)
		must(t, err)
		select {
		case n := <-s.got:
			return n == 99
		case <-time.After(20 * time.Millisecond):
			return false
		}
	})
}

func TestALinkThatGoesDownAndUpIsUsedAgain(t *testing.T) {
	s := newExpressScene(t)
	s.link(s.dev, netlink.LinkSetDown)
	s.awaitWay(byUDP)
	s.link(s.dev, netlink.LinkSetUp)
	s.awaitWay(byXDP)
	s.arrives("a message")
	s.link(s.dev, func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1400) })
	s.arrives("a message with another MTU")
	s.awaitWay(byXDP)
}

// TestClosingWhileAllElseGoesOn is for the race detector.
func TestClosingWhileAllElseGoesOn(t *testing.T) {
	requireXDP(t)
	s := newScene(t)
	for range 5 {
		p := s.another(byXDP, "", slog.DiscardHandler)
		p.AddSource(farAt.Addr())
		p.SetGuarded()
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
					p.AddIndex(i)
					p.AddSource(addr(byte(i)))
					p.RemoveIndex(i)
					p.RemoveSource(addr(byte(i)))
					p.Report()
					if i%64 == 0 {
						p.SetMode([]config.UnderlayMode{byXDP, byUDP}[i/64%2])
					}
				}
			})
		}
		time.Sleep(150 * time.Millisecond) // any time will do
		must(t, p.Close())
		close(stop)
		users.Wait()
		if got := s.attached(s.dev); got != 0 {
			t.Fatalf("program %d is left behind", got)
		}
	}
}
