// SPDX-License-Identifier: Apache-2.0

package attack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/ropewalk/ropewalk/pkg/control/show"
	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab/netlabtest"
	"github.com/ropewalk/ropewalk/pkg/lab/testbed"
	"github.com/ropewalk/ropewalk/pkg/lab/traffic"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/test/expect"
)

const (
	// packets is the number of packets of an attack without -attack.
	packets = 3000
	// closedPort is a port of the attacked host where nobody listens.
	closedPort = testbed.ListenPort + 1
)

// lab is a tunnel whose end A is attacked.
type lab struct {
	*testing.T
	*testbed.Lab
	x *attacker
	// running ends with the test, or with an interrupt: the test then fails, and removes the lab.
	running context.Context
}

func newLab(t *testing.T) *lab {
	t.Helper()
	if err := testbed.Probe(); errors.Is(err, netlab.ErrPrivileges) || errors.Is(err, os.ErrNotExist) {
		t.Skipf("needs network namespaces and /dev/net/tun: %v", err)
	}
	program := ropewalk.Need(t)
	running, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM)
	t.Cleanup(stop)
	l, err := testbed.New(running, testbed.Config{
		Queues: 2, Prefix: netlabtest.Prefix(t), Traffic: []string{program, "traffic"},
		Daemon: testbed.Command(program, "run", "--post-quantum", "auto", "--underlay", *mode),
	})
	expect.NoError(t, err)
	t.Cleanup(func() { expect.NoError(t, l.Close()) })
	h, err := attackerHost(l)
	expect.NoError(t, err)
	expect.NoError(t, l.A.Host.RouteVia(forgedAddresses, attackerAddress))
	expect.NoError(t, l.A.Host.Forward())
	expect.NoError(t, l.A.Host.RouteThrough(netip.MustParsePrefix("100.64.0.0/24"), l.A.Iface))
	r := &lab{T: t, Lab: l, x: newAttacker(t, h, l.A.PublicKey()), running: running}
	r.addPeers()
	return r
}

// attackerHost connects the attacker to A by a cable of its own, or with -guard by that of the tunnel, which other hosts share as they share a NIC.
func attackerHost(l *testbed.Lab) (*netlab.Host, error) {
	near, far := netip.PrefixFrom(attackedAddress, 24), netip.PrefixFrom(attackerAddress, 24)
	if !*guard {
		return l.AddHost("x", near, far)
	}
	return l.B.Host, errors.Join(l.A.Host.SetUp(l.A.CableDevice, 0, near), l.B.Host.SetUp(l.B.CableDevice, 0, far))
}

// addPeers makes the attacker a peer, and adds others that do not answer.
func (l *lab) addPeers() {
	l.Helper()
	peers := []config.Peer{{
		PublicKey: l.x.identity.Public(), AllowedIPs: []config.AllowedIP{{Prefix: netip.PrefixFrom(netip.AddrFrom4(innerAddress), 32)}},
	}}
	for i := range offlinePeers {
		key := noise.PublicKey{1, byte(i)}
		peers = append(peers, config.Peer{
			PublicKey: key, Endpoint: &config.Endpoint{AddrPort: netip.AddrPortFrom(attackerAddress, uint16(1000+i))},
			AllowedIPs: []config.AllowedIP{{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{100, 64, 0, byte(i)}), 32)}},
		})
	}
	c, err := uapi.Dial(l.A.Iface)
	expect.NoError(l, err)
	defer c.Close()
	expect.NoError(l, c.Configure(config.Device{Peers: peers}))
}

// TestAttacksAreCountedAndSurvived sends each attack, and then traffic through the tunnel.
func TestAttacksAreCountedAndSurvived(t *testing.T) {
	l := newLab(t)
	for _, a := range attacks {
		before := l.drops()
		expect.NoError(t, l.x.connect())
		l.x.send(l.x.generator(a, testbed.ListenPort, packets), packets, nil)
		expect.Eventually(t, a.name+" is counted", func() bool { return len(a.countedSince(before, l.drops())) > 0 })
		t.Logf("%s: %s", a.name, strings.Join(a.countedSince(before, l.drops()), ", "))
		expect.NoError(t, l.Err())
	}
	if res := l.tcp(time.Second); res.Bytes == 0 {
		t.Error("no traffic gets through after the attacks")
	}
}

// TestAttacksLeaveThroughput measures, with -attack.
func TestAttacksLeaveThroughput(t *testing.T) {
	if *duration == 0 {
		t.Skip("a measurement: make attack")
	}
	l := newLab(t)
	var out bytes.Buffer
	w := tabwriter.NewWriter(&out, 0, 0, 1, ' ', 0)
	fmt.Fprintln(w, "| attack\t| packets/s\t| Gbit/s\t| cost\t| daemon, % of a core\t| context switches/s\t| memory, KiB\t| counted as\t|")
	fmt.Fprintln(w, "| ---\t| ---:\t| ---:\t| ---:\t| ---:\t| ---:\t| ---:\t| ---\t|")
	l.tcp(*duration)
	for _, a := range attacks {
		if strings.Contains(a.name, *only) {
			fmt.Fprintln(w, l.measure(a))
		}
	}
	w.Flush()
	t.Logf("TCP through the tunnel, underlay %s, guard %t, %d packets per second, %d rounds\n"+
		"a / b / c: without the attack, its packets to a port without a listener, the attack\n%s", *mode, *guard, *rate, *rounds, out.String())
}

// measure returns a row of the table.
func (l *lab) measure(a attack) string {
	l.Helper()
	drops, memory := l.drops(), l.memory()
	var r results
	for round := range *rounds {
		expect.NoError(l, l.x.connect())
		for _, c := range order(round) {
			r.add(c, l.beside(a, c))
		}
	}
	return fmt.Sprintf("| %s\t| %s\t| %s\t| %s\t| %s\t| %s\t| %+d\t| %s\t|", a.name, r.means(packetRate, "%.0f"), r.means(gbps, "%.2f"),
		cost(r[noListener][gbps], r[attacked][gbps]), r.means(cpu, "%.0f"), r.means(switches, "%.0f"),
		l.memory()-memory, strings.Join(a.countedSince(drops, l.drops()), ", "))
}

// beside measures TCP beside a case of an attack.
func (l *lab) beside(a attack, c caseOfRound) (f figures) {
	l.Helper()
	stop, sent := make(chan struct{}), make(chan int, 1)
	if port := c.port(); port == 0 {
		sent <- 0
	} else {
		next := l.x.generator(a, port, prepared)
		go func() { sent <- l.x.send(next, 1<<40, stop) }()
	}
	before, err := l.A.Daemon.Usage()
	expect.NoError(l, err)
	begin := time.Now()
	f[gbps] = l.tcp(*duration).BitsPerSecond / 1e9
	seconds := time.Since(begin).Seconds()
	after, err := l.A.Daemon.Usage()
	expect.NoError(l, err)
	close(stop)
	f[packetRate] = float64(<-sent) / seconds
	f[cpu] = 100 * (after.CPU - before.CPU).Seconds() / seconds
	f[switches] = float64(after.Switches-min(before.Switches, after.Switches)) / seconds
	return f
}

// tcp sends TCP to the attacked end.
func (l *lab) tcp(d time.Duration) traffic.Result {
	l.Helper()
	res, err := l.Load(l.running, testbed.Flow{Reverse: true, Config: traffic.Config{Kind: traffic.TCP, Streams: 2, Duration: d}})
	expect.NoError(l, err)
	return res
}

// countedSince returns the attack's reasons whose counts have grown.
func (a attack) countedSince(before, now map[string]uint64) (list []string) {
	for _, reason := range a.counted {
		if name := reason.String(); now[name] > before[name] {
			list = append(list, "`"+name+"`")
		}
	}
	slices.Sort(list)
	return list
}

// drops returns the drops of the attacked device.
func (l *lab) drops() map[string]uint64 {
	l.Helper()
	c, err := uapi.Dial(l.A.Iface)
	expect.NoError(l, err)
	defer c.Close()
	var s show.Stats
	expect.NoError(l, c.Stats(&s))
	return s.AllDrops()
}

// memory returns the resident memory of the attacked daemon in KiB.
func (l *lab) memory() (kib int) {
	l.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", l.A.Daemon.PIDs()[0]))
	expect.NoError(l, err)
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	_, err = fmt.Sscan(rest, &kib)
	expect.NoError(l, err)
	return kib
}
