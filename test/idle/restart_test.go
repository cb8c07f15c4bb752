// SPDX-License-Identifier: Apache-2.0

package idle

import (
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab/netlabtest"
	"github.com/ropewalk/ropewalk/test/expect"
)

// restartPeers is the number of peers without -scale.
const restartPeers = 100

// reconnectLimit is the longest time in which all peers must have a session again.
const reconnectLimit = 3 * time.Minute

// TestPeersReconnectAfterRestart restarts a daemon whose peers all initiate at once, or to whose peers it initiates at once. All must have a
// session again. It prints the costs, which -scale makes worth reading.
func TestPeersReconnectAfterRestart(t *testing.T) {
	for _, dialed := range []bool{false, true} {
		name := "peers initiate"
		if dialed {
			name = "the daemon initiates"
		}
		t.Run(name, func(t *testing.T) { reconnect(t, dialed, stockPeers) })
		t.Run(name+", and peers send hellos", func(t *testing.T) { reconnect(t, dialed, helloPeers) })
		t.Run(name+", and peers exchange keys", func(t *testing.T) { reconnect(t, dialed, exchangingPeers) })
	}
}

// kind is the kind of a fleet's peers.
type kind int

const (
	stockPeers kind = iota
	helloPeers
	exchangingPeers
)

// cpuTime returns the CPU time of this process.
func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	expect.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// reconnect restarts a daemon that has sessions with all peers. With dialed it initiates, otherwise its peers do. With exchanges all must have a session
// with a post-quantum key, too. The peers of all take their CPU time from one goroutine.
func reconnect(t *testing.T, dialed bool, peers kind) {
	exchanges := peers == exchangingPeers
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skipf("needs a TUN driver: %v", err)
	}
	lab, _ := netlabtest.Hosts(t, "restart")
	command := scaledCommand(t)
	switch {
	case peers != stockPeers && *other != "":
		t.Skip("only ropewalk sends hellos")
	case *other == "":
		command = append(command, "--post-quantum", map[bool]string{true: "auto", false: "off"}[exchanges])
	}
	d := startScaled(t, lab, command)
	var conn *net.UDPConn
	expect.NoError(t, d.host.Do(func() (err error) {
		conn, err = fleetSocket()
		return err
	}))
	count := restartPeers
	if *scale > 0 {
		count = *scale
	}
	f := newFleet(t, count, d.public, conn)
	if peers != stockPeers {
		f.ropewalks(d.public, exchanges)
	}
	d.connectFleet(f, dialed)
	d.restart(command)
	before, ownBefore := d.usage(), cpuTime(t)
	var classical usage
	var ownClassical time.Duration
	f.onAll = func() { classical, ownClassical = d.usage(), cpuTime(t)-ownBefore }
	peak := d.connectFleet(f, dialed)
	took, u, own := f.until(1, false), d.usage(), cpuTime(t)-ownBefore
	d.report("half of the peers have a session after", "s", f.until(0.5, false).Seconds())
	d.report("99 of 100", "s", f.until(0.99, false).Seconds())
	d.report(fmt.Sprintf("all %d", count), "s", took.Seconds())
	if exchanges {
		d.report("half have one with a key after", "s", f.until(0.5, true).Seconds())
		d.report("99 of 100", "s", f.until(0.99, true).Seconds())
		d.report(fmt.Sprintf("all %d", count), "s", f.until(1, true).Seconds())
	}
	d.report("initiations or responses that each peer sent", "", float64(f.sent)/float64(count))
	d.report("CPU time of the daemon until all have a session", "s", float64(classical.ticks-before.ticks)/100)
	d.report("CPU time of the peers until then", "s", ownClassical.Seconds())
	d.report("CPU time of the daemon", "s", float64(u.ticks-before.ticks)/100)
	d.report("CPU time of the peers", "s", own.Seconds())
	d.report("peak of resident memory", "MiB", float64(peak)/1024)
}

// connectFleet sets all peers, and lets them or the daemon initiate. It returns the peak of the daemon's resident memory in KiB.
func (d *daemon) connectFleet(f *fleet, dialed bool) (peak int) {
	d.t.Helper()
	f.prepare(d.port, !dialed)
	f.began = time.Now()
	d.apply(f.config(dialed))
	if !dialed {
		d.report("set all peers", "s", time.Since(f.began).Seconds())
		f.began = time.Now()
		expect.NoError(d.t, f.initiate())
	}
	expect.NoError(d.t, f.run(reconnectLimit))
	expect.Eventually(d.t, "the daemon has all sessions", func() bool { return connected(d.status(), len(f.peers)) })
	return field(d.t, fmt.Sprintf("/proc/%d/status", d.cmd.Process.Pid), "VmHWM:")
}

// restart ends the daemon, and starts it again with its key.
func (d *daemon) restart(command []string) {
	d.t.Helper()
	key := d.status().PrivateKey
	expect.NoError(d.t, d.cmd.Process.Signal(os.Interrupt))
	_ = d.cmd.Wait() // an interrupted wireguard-go fails
	began := time.Now()
	d.cmd = d.run(append(command[:len(command):len(command)], d.ifname))
	d.setKey(key)
	d.report("restart, until the port is open", "s", time.Since(began).Seconds())
}
