// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// complaints are in lines of wireguard-go's verbose log about messages, or what was in them, that WireGuard does not send:
// all that device/receive.go and device/noise-protocol.go write when they drop something.
var complaints = []string{
	"unknown type", "invalid", "Invalid", "Failed to decode", "Failed to derive", "disallowed source", "handshake replay",
	"unknown IP version",
}

func complaintsIn(log string) (lines []string) {
	for line := range strings.Lines(log) {
		for _, c := range complaints {
			if strings.Contains(line, c) {
				lines = append(lines, strings.TrimSpace(line))
				break
			}
		}
	}
	return lines
}

// TestStockPeerHearsNothingButWireGuard shakes hands with stock WireGuards several times, from either end, while ropewalk
// is ready to spread, as it is by default: they find nothing in what it sends that WireGuard does not have.
func TestStockPeerHearsNothingButWireGuard(t *testing.T) {
	needs(t)
	t.Parallel()
	for _, stock := range stocks() {
		t.Run(stock.name, func(t *testing.T) {
			t.Parallel()
			needRopewalk(t)
			stock.need(t)
			forBothFamilies(t, func(t *testing.T, v6 bool) {
				t.Parallel()
				var process atomic.Pointer[daemon]
				impl := stock
				if impl.name == wireguardGo.name {
					impl = verbose(&process)
				}
				l := newLab(t, pairing{ropewalk, impl}, v6)
				l.start(t)
				serveEcho(t, l.left.host)
				serveEcho(t, l.right.host)
				for i := range 4 {
					l.talkAfterRestart(t, i%2 == 1)
					if d := process.Load(); d != nil {
						wantNoComplaints(t, d)
					}
				}
			})
		})
	}
}

// stocks are WireGuards of others. Virtual machines do without wireguard-go: where all is slow, handshakes cross, and it complains of the
// one that it gave up.
func stocks() []implementation {
	if inMachine() {
		return []implementation{inKernel}
	}
	return []implementation{inKernel, wireguardGo}
}

// talkAfterRestart restarts one side, which then begins to talk, and looks at the counters of both.
func (l *lab) talkAfterRestart(t *testing.T, right bool) {
	t.Helper()
	first, second := l.pick(right)
	first.restart(t, l.peerOf(first))
	exchange(t, first, second.inner4.Addr(), 1000)
	exchange(t, second, first.inner6.Addr(), 1000)
	bulk{from: first, to: second, streams: manyStreams, bytes: 64 << 10}.run(t)
	l.wantStock(t)
	for _, x := range l.both() {
		x.noErrors(t)
	}
}

// wantStock waits until ropewalk, on the left, has found that its peer is none.
func (l *lab) wantStock(t *testing.T) {
	t.Helper()
	eventually(t, "ropewalk to find that its peer is stock", patience, func() error {
		const want = "spread: off (the peer has sent no hello"
		if out := l.left.showLanes(t); !strings.Contains(out, want) {
			return errors.New(out)
		}
		return nil
	})
}

// showLanes is what `ropewalk show --lanes` prints of a ropewalk.
func (x *tunnel) showLanes(t *testing.T) string {
	t.Helper()
	out, err := exec.Command(ropewalkBinary.Need(t), "show", x.ifname, "--lanes").CombinedOutput()
	if err != nil {
		t.Fatalf("showing the lanes of %s: %v\n%s", x, err, out)
	}
	return string(out)
}

// verbose is a wireguard-go that logs what it drops, and why. It stores the process that runs.
func verbose(process *atomic.Pointer[daemon]) implementation {
	start := func(t *testing.T, h *host, ifname string) func() error {
		t.Helper()
		d, stop := launch(t, h, []string{"LOG_LEVEL=verbose"}, wireguardGoBinary.Need(t), "-f", ifname)
		process.Store(d)
		return stop
	}
	return implementation{name: wireguardGo.name, need: needWireGuardGo, start: start}
}

func wantNoComplaints(t *testing.T, d *daemon) {
	t.Helper()
	log := d.log.String()
	if lines := complaintsIn(log); len(lines) > 0 {
		t.Fatalf("wireguard-go complains:\n%s", strings.Join(lines, "\n"))
	}
	if !strings.Contains(log, "handshake") {
		t.Errorf("wireguard-go logs no handshakes:\n%s", log)
	}
}

// TestStockPeerComplainsOfWhatIsNotWireGuard is what makes the silence of the test above mean something.
func TestStockPeerComplainsOfWhatIsNotWireGuard(t *testing.T) {
	needs(t)
	t.Parallel()
	needRopewalk(t)
	needWireGuardGo(t)
	var process atomic.Pointer[daemon]
	l := newLab(t, pairing{ropewalk, verbose(&process)}, false)
	l.start(t)
	var c *net.UDPConn
	must(t, l.left.host.do(func() (err error) {
		c, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(l.endpoint(l.right)))
		return err
	}))
	defer c.Close()
	for _, m := range [][]byte{message(9, 60), message(1, 148), message(2, 92)} {
		before := len(complaintsIn(process.Load().log.String()))
		eventually(t, fmt.Sprintf("a complaint about type %d", m[0]), patience, func() error {
			_, _ = c.Write(m)
			if len(complaintsIn(process.Load().log.String())) == before {
				return errors.New("none")
			}
			return nil
		})
	}
}

// message is of a WireGuard message's type and length, and of nothing else of it.
func message(kind byte, n int) []byte {
	m := make([]byte, n)
	m[0] = kind
	return m
}

// TestTwoRopewalksFindEachOther needs no configuration: it is what stock peers are not told of.
func TestTwoRopewalksFindEachOther(t *testing.T) {
	needs(t)
	t.Parallel()
	needRopewalk(t)
	forBothFamilies(t, func(t *testing.T, v6 bool) {
		t.Parallel()
		l := newLab(t, pairing{ropewalk, ropewalk}, v6)
		first, second := l.pick(false)
		first.start(t, l.peerOf(first))
		second.start(t, first.asPeer(netip.AddrPort{}, nil))
		for _, x := range l.both() {
			serveEcho(t, x.host)
		}
		eventually(t, "the two to spread", patience, func() error {
			if err := tryExchange(first, second.inner4.Addr(), 100, again, time.Second); err != nil {
				return err
			}
			for _, x := range l.both() {
				if out := x.showLanes(t); !strings.Contains(out, "  spread: 64 ports") {
					return errors.New(out)
				}
			}
			return nil
		})
		exchange(t, second, first.inner6.Addr(), 1000)
		for _, x := range l.both() {
			l.wantEndpoint(t, x, l.other(x))
			x.noErrors(t)
		}
	})
}
