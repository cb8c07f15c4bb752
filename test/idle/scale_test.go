// SPDX-License-Identifier: Apache-2.0

package idle

import (
	"bytes"
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab/netlabtest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/test/expect"
)

var (
	scale = flag.Int("scale", 0, "number of peers with which to measure a daemon (docs/dev/measurements.md); 0: do not")
	other = flag.String("other", "", "command of another WireGuard to measure with -scale, without the name of the interface")
)

// maxActive is the number of peers that get a session.
const maxActive = 10_000

// TestScaleWithPeers prints the costs of a daemon with many peers. It asserts nothing but that everything works.
func TestScaleWithPeers(t *testing.T) {
	if *scale == 0 {
		t.Skip("measures only with -scale")
	}
	lab, _ := netlabtest.Hosts(t, "scale")
	command := scaledCommand(t)
	d := startScaled(t, lab, command)
	c := d.manyPeers(*scale)
	d.measureSetting(c)
	d.measureReading()
	d.measureIdle()
	d.measureHandshakes(c)
	if *other == "" {
		d.measureUpgrade(command)
	}
}

// scaledCommand returns the command of the daemon to measure, without the name of the interface.
func scaledCommand(t *testing.T) []string {
	t.Helper()
	if command := strings.Fields(*other); len(command) > 0 {
		return command
	}
	return []string{ropewalk.Need(t), "run", "--lanes", "2", "--workers", "2"}
}

// startScaled starts a daemon that logs to a file of its own.
func startScaled(t *testing.T, lab *netlab.Lab, command []string) *daemon {
	t.Helper()
	d := &daemon{t: t, ifname: fmt.Sprintf("s%d", os.Getpid())}
	var err error
	d.host, err = lab.Host("scaled")
	expect.NoError(t, err)
	d.cmd = d.run(append(command, d.ifname))
	key, err := noise.NewPrivateKey(rand.Reader)
	expect.NoError(t, err)
	d.setKey(key)
	return d
}

// run starts a process on the daemon's host, and ends it with the test.
func (d *daemon) run(argv []string) *netlab.Command {
	d.t.Helper()
	cmd := d.host.Command(context.Background(), argv...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	expect.NoError(d.t, cmd.Start())
	d.t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait() // an interrupted wireguard-go fails
		for line := range strings.Lines(log.String()) {
			if strings.Contains(line, "handed over") || strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
				d.t.Log(strings.TrimSpace(line))
			}
		}
	})
	return cmd
}

// setKey gives the daemon a private key and sets its interface up.
func (d *daemon) setKey(key noise.PrivateKey) {
	d.t.Helper()
	expect.Eventually(d.t, "the daemon answers", func() bool { return d.ask(func(*uapi.Client) error { return nil }) == nil })
	d.public = key.Public()
	d.apply(config.Device{PrivateKey: &key})
	expect.NoError(d.t, d.host.SetUp(d.ifname, 1420))
	expect.Eventually(d.t, "the port is open", func() bool {
		d.port = d.status().ListenPort
		return d.port != 0
	})
}

// manyPeers returns peers behind one socket of the daemon's host.
func (d *daemon) manyPeers(n int) *peerSet {
	d.t.Helper()
	return newPeerSet(d.t, n, d.public, func() (conn *net.UDPConn, err error) {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), d.port)
		err = d.host.Do(func() error {
			conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(at))
			return err
		})
		return conn, err
	})
}

// report prints one figure.
func (d *daemon) report(what, unit string, value float64) {
	d.t.Logf("%-60s %12.2f %s", what, value, unit)
}

// measureSetting adds all peers in transactions as large as a request may be, removes them, and adds them one by one.
func (d *daemon) measureSetting(c *peerSet) {
	d.t.Helper()
	const most = 100_000 // in one request
	peers, before := c.config(), d.usage()
	set := func(size int) time.Duration {
		began := time.Now()
		expect.NoError(d.t, d.ask(func(client *uapi.Client) error {
			for first := 0; first < len(peers.Peers); first += size {
				if err := client.Configure(config.Device{Peers: peers.Peers[first:min(first+size, len(peers.Peers))]}); err != nil {
					return err
				}
			}
			return nil
		}))
		return time.Since(began)
	}
	d.report("set all in one transaction", "s", set(most).Seconds())
	u := d.usage()
	d.report("resident memory", "MiB", float64(u.rss)/1024)
	d.report("resident memory per peer", "KiB", float64(u.rss-before.rss)/float64(len(peers.Peers)))
	began := time.Now()
	d.apply(config.Device{ReplacePeers: true})
	d.report("remove all", "s", time.Since(began).Seconds())
	d.report("set one by one", "s", set(1).Seconds())
}

// measureReading reads all peers as wg show does.
func (d *daemon) measureReading() {
	d.t.Helper()
	began := time.Now()
	n := len(d.status().Peers)
	d.report("get=1 (wg show)", "s", time.Since(began).Seconds())
	if n != *scale {
		d.t.Errorf("%d peers, want %d", n, *scale)
	}
	if *other != "" {
		return
	}
	began = time.Now()
	var stats any
	expect.NoError(d.t, d.ask(func(c *uapi.Client) error { return c.Stats(&stats) }))
	d.report("stats=1 (metrics)", "s", time.Since(began).Seconds())
}

func (d *daemon) measureIdle() {
	d.t.Helper()
	time.Sleep(5 * time.Second) // the heap is collected
	before, began := d.usage(), time.Now()
	time.Sleep(10 * time.Second)
	u := d.usage()
	d.report("CPU time while idle", "ms/s", float64(u.ticks-before.ticks)*10/time.Since(began).Seconds())
	d.report("resident memory, idle", "MiB", float64(u.rss)/1024)
}

// measureHandshakes gives the active peers sessions. The peers compute on the same cores.
func (d *daemon) measureHandshakes(c *peerSet) {
	d.t.Helper()
	active := *c
	active.keys = c.keys[:min(len(c.keys), maxActive)]
	before, began := d.usage(), time.Now()
	active.connect(d.t)
	took, u := time.Since(began), d.usage()
	d.report(fmt.Sprintf("handshakes of %d peers, which use the same cores", len(active.keys)), "1/s", float64(len(active.keys))/took.Seconds())
	d.report("CPU time of the daemon per handshake", "µs", float64(u.ticks-before.ticks)*1e4/float64(len(active.keys)))
	d.report("resident memory with sessions", "MiB", float64(u.rss)/1024)
}

// measureUpgrade replaces the daemon by another one. The old one logs for how long the tunnel stopped.
func (d *daemon) measureUpgrade(command []string) {
	d.t.Helper()
	old, began := d.cmd, time.Now()
	d.cmd = d.run(append(append(command[:len(command):len(command)], "--takeover"), d.ifname))
	_, err := old.Process.Wait()
	expect.NoError(d.t, err)
	d.report("upgrade in place, with preparation", "s", time.Since(began).Seconds())
}
