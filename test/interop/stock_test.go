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

	"github.com/ropewalk/ropewalk/test/expect"
)

// dropTexts are substrings of wireguard-go's verbose log lines about dropped messages and packets: all texts that
// device/receive.go and device/noise-protocol.go log when they drop one.
var dropTexts = []string{
	"unknown type", "invalid", "Invalid", "Failed to decode", "Failed to derive", "disallowed source", "handshake replay",
	"unknown IP version",
}

func dropLines(log string) (lines []string) {
	for line := range strings.Lines(log) {
		for _, c := range dropTexts {
			if strings.Contains(line, c) {
				lines = append(lines, strings.TrimSpace(line))
				break
			}
		}
	}
	return lines
}

// TestStockPeerReceivesOnlyWireGuardMessages runs several handshakes with stock WireGuard from either end, while ropewalk is ready to
// spread, which is the default. The peer must not drop any message as foreign to WireGuard.
func TestStockPeerReceivesOnlyWireGuardMessages(t *testing.T) {
	requireTUN(t)
	t.Parallel()
	for _, stock := range stockImplementations() {
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
					l.exchangeAfterRestart(t, i%2 == 1)
					if d := process.Load(); d != nil {
						wantNoDrops(t, d)
					}
				}
			})
		})
	}
}

// stockImplementations returns the WireGuard implementations other than ropewalk. Virtual machines leave out wireguard-go:
// on a slow machine both sides often initiate at once, and wireguard-go logs the abandoned handshake as invalid.
func stockImplementations() []implementation {
	if inMachine() {
		return []implementation{inKernel}
	}
	return []implementation{inKernel, wireguardGo}
}

// exchangeAfterRestart restarts one side, which then sends first, and checks the counters of both.
func (l *lab) exchangeAfterRestart(t *testing.T, right bool) {
	t.Helper()
	first, second := l.pick(right)
	first.restart(t, l.peerOf(first))
	exchange(t, first, second.inner4.Addr(), 1000)
	exchange(t, second, first.inner6.Addr(), 1000)
	bulk{from: first, to: second, streams: manyStreams, bytes: 64 << 10}.run(t)
	l.wantStockPeer(t)
	for _, x := range l.both() {
		x.noErrors(t)
	}
}

// wantStockPeer waits until ropewalk, on the left, reports that its peer does not run ropewalk.
func (l *lab) wantStockPeer(t *testing.T) {
	t.Helper()
	expect.EventuallyNoError(t, "ropewalk to report spread as off for a stock peer", func() error {
		out := l.left.showLanes(t)
		if !strings.Contains(out, "spread: off (the peer") || !strings.Contains(out, "sent no hello") {
			return errors.New(out)
		}
		return nil
	})
}

// showLanes returns the output of `ropewalk show --lanes`.
func (x *tunnel) showLanes(t *testing.T) string {
	t.Helper()
	out, err := exec.Command(ropewalkBinary.Need(t), "show", x.ifname, "--lanes").CombinedOutput()
	if err != nil {
		t.Fatalf("showing the lanes of %s: %v\n%s", x, err, out)
	}
	return string(out)
}

// verbose is a wireguard-go that logs each drop with its reason. It stores the running process.
func verbose(process *atomic.Pointer[daemon]) implementation {
	start := func(t *testing.T, h *host, ifname string) func() error {
		t.Helper()
		d, stop := launch(t, h, []string{"LOG_LEVEL=verbose"}, wireguardGoBinary.Need(t), "-f", ifname)
		process.Store(d)
		return stop
	}
	return implementation{name: wireguardGo.name, need: needWireGuardGo, start: start}
}

func wantNoDrops(t *testing.T, d *daemon) {
	t.Helper()
	log := d.log.String()
	if lines := dropLines(log); len(lines) > 0 {
		t.Fatalf("wireguard-go dropped messages:\n%s", strings.Join(lines, "\n"))
	}
	if !strings.Contains(log, "handshake") {
		t.Errorf("wireguard-go logged no handshakes:\n%s", log)
	}
}

// TestStockPeerLogsInvalidMessages proves that wireguard-go logs the drops that TestStockPeerReceivesOnlyWireGuardMessages looks for.
func TestStockPeerLogsInvalidMessages(t *testing.T) {
	requireTUN(t)
	t.Parallel()
	needRopewalk(t)
	needWireGuardGo(t)
	var process atomic.Pointer[daemon]
	l := newLab(t, pairing{ropewalk, verbose(&process)}, false)
	l.start(t)
	var c *net.UDPConn
	expect.NoError(t, l.left.host.do(func() (err error) {
		c, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(l.endpoint(l.right)))
		return err
	}))
	defer c.Close()
	for _, m := range [][]byte{message(9, 60), message(1, 148), message(2, 92)} {
		before := len(dropLines(process.Load().log.String()))
		expect.EventuallyNoError(t, fmt.Sprintf("a log line about a message of type %d", m[0]), func() error {
			_, _ = c.Write(m)
			if len(dropLines(process.Load().log.String())) == before {
				return errors.New("none")
			}
			return nil
		})
	}
}

// message returns a message with the given WireGuard type and length, and zeros otherwise.
func message(kind byte, n int) []byte {
	m := make([]byte, n)
	m[0] = kind
	return m
}

// TestTwoRopewalksNegotiateSpread checks that two ropewalks enable spread without configuration.
func TestTwoRopewalksNegotiateSpread(t *testing.T) {
	requireTUN(t)
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
		expect.EventuallyNoError(t, "the two to spread", func() error {
			if err := tryExchange(first, second.inner4.Addr(), 100, retryInterval, time.Second); err != nil {
				return err
			}
			for _, x := range l.both() {
				if err := x.checkSpread(t); err != nil {
					return err
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

// checkSpread returns an error unless the tunnel's only peer admits all spread source ports.
func (x *tunnel) checkSpread(t *testing.T) error {
	t.Helper()
	if out := x.showLanes(t); !strings.Contains(out, "  spread: 64 ports") {
		return errors.New(out)
	}
	return nil
}
