// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// Modes of the fake daemon.
const (
	fakeWorks    = "works"
	fakeDies     = "dies"     // exits at once, with a line in its log
	fakeSilent   = "silent"   // creates the interface, never serves it
	fakeStubborn = "stubborn" // survives the interface and SIGTERM
	fakeTaken    = "taken"    // finds its port in use
	fakeFreed    = "freed"    // finds its port in use when the link comes up, and free at the next Configure
	fakeNoPort   = "noport"   // never notices that the link is up
	fakeLostLink = "lostlink" // reports that u0 is absent, once it is
	fakeOlder    = "older"    // does not report its settings
)

const fakeArg = "fake-daemon"

// TestMain lets the test binary be the fake daemon: `quick.test fake-daemon MODE SOCKETS NAME`.
func TestMain(m *testing.M) {
	if len(os.Args) == 5 && os.Args[1] == fakeArg {
		if err := fakeDaemon(os.Args[2], uapi.Dir(os.Args[3]), os.Args[4]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// lookPath is exec.LookPath.
func lookPath(name string) (string, error) { return exec.LookPath(name) }

func fakeCommand(mode string, sockets uapi.Dir) func(name string, flags []string) *exec.Cmd {
	return func(name string, _ []string) *exec.Cmd {
		cmd := exec.Command("/proc/self/exe", fakeArg, mode, string(sockets), name)
		// The race detector would delay its exit by a second.
		cmd.Env = append(cmd.Environ(), "GORACE=atexit_sleep_ms=0")
		return cmd
	}
}

// fakeDaemon is `ropewalk run NAME` without the data path: it creates a TUN device and serves a device in memory until the TUN device
// is deleted or SIGTERM arrives.
func fakeDaemon(mode string, sockets uapi.Dir, name string) error {
	if mode == fakeDies {
		return fmt.Errorf("fake daemon of %s: no luck", name)
	}
	go endWithTest(sockets)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	tun := &netlink.Tuntap{
		LinkAttrs: netlink.LinkAttrs{Name: name}, Mode: netlink.TUNTAP_MODE_TUN,
		Flags: netlink.TUNTAP_NO_PI, NonPersist: true, Queues: 1,
	}
	if err := netlink.LinkAdd(tun); err != nil {
		return err
	}
	go func() {
		drain(tun.Fds[0])
		if mode != fakeStubborn {
			stop()
		}
	}()
	if mode == fakeSilent {
		<-ctx.Done()
		return nil
	}
	l, err := sockets.Listen(name)
	if err != nil {
		return err
	}
	err = uapi.Serve(ctx, l, newFakeDevice(mode, name))
	if mode == fakeStubborn {
		signal.Ignore(syscall.SIGTERM)
		for {
			time.Sleep(time.Hour)
		}
	}
	return err
}

// endWithTest ends the process after its test, which removes the directory. A test may leave the daemon of a moved interface.
func endWithTest(sockets uapi.Dir) {
	for {
		if _, err := os.Stat(string(sockets)); err != nil {
			os.Exit(0)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// drain reads until the interface is deleted.
func drain(tun *os.File) {
	buf := make([]byte, 65535)
	for {
		if _, err := tun.Read(buf); err != nil {
			return
		}
	}
}

// fakeDevice keeps the part of a device's configuration that these tests read.
type fakeDevice struct {
	mode   string
	mu     sync.Mutex
	status config.Status
	report deviceReport
	opened bool // its port, by Configure
}

func newFakeDevice(mode, name string) *fakeDevice {
	settings := map[string]string{}
	for _, s := range config.Table() {
		settings[s.Name] = s.Default
	}
	return &fakeDevice{mode: mode, status: config.Status{Name: name}, report: deviceReport{Settings: settings}}
}

// Stats returns the part of a device's statistics that these tests read.
func (d *fakeDevice) Stats() any {
	d.mu.Lock()
	defer d.mu.Unlock()
	noticesLink := d.mode == fakeWorks || d.mode == fakeStubborn || d.mode == fakeLostLink || d.mode == fakeOlder
	if _, err := hostnet.FindLink("u0"); err != nil && d.mode == fakeLostLink {
		d.report.AbsentLinks = map[string]int{"u0": int(d.status.Peers[0].Endpoint.Scope)}
	}
	report := d.report
	if d.mode == fakeOlder {
		report.Settings, report.PostQuantum = nil, &config.PostQuantumReport{}
	}
	return struct {
		Up bool `json:"up"`
		deviceReport
	}{d.opened || noticesLink && d.linkUp(), report}
}

func (d *fakeDevice) linkUp() bool {
	link, err := hostnet.FindLink(d.status.Name)
	return err == nil && link.Up
}

// open opens the port, as a device does when its port is set.
func (d *fakeDevice) open() error {
	switch {
	case !d.linkUp():
	case d.mode == fakeTaken:
		return syscall.EADDRINUSE
	case d.mode == fakeFreed:
		d.opened = true
	}
	return nil
}

func (d *fakeDevice) Status() config.Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	st := d.status
	st.Peers = slices.Clone(st.Peers)
	return st
}

func (d *fakeDevice) Configure(dev config.Device) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if dev.ListenPort != nil {
		if err := d.open(); err != nil {
			return err
		}
	}
	assign(&d.status.PrivateKey, dev.PrivateKey)
	assign(&d.status.ListenPort, dev.ListenPort)
	assign(&d.status.FwMark, dev.FwMark)
	d.status.PublicKey = d.status.PrivateKey.Public()
	d.configureOwn(dev)
	if dev.ReplacePeers {
		d.status.Peers = nil
	}
	for i := range dev.Peers {
		p := &dev.Peers[i]
		d.status.Peers = slices.DeleteFunc(d.status.Peers, func(st config.PeerStatus) bool { return st.PublicKey == p.PublicKey })
		if !p.Remove {
			d.addPeer(p)
		}
	}
	return nil
}

// configureOwn changes the settings that only ropewalk has.
func (d *fakeDevice) configureOwn(dev config.Device) {
	maps.Copy(d.report.Settings, dev.Texts())
}

func (d *fakeDevice) addPeer(p *config.Peer) {
	st := config.PeerStatus{PublicKey: p.PublicKey}
	assign(&st.PresharedKey, p.PresharedKey)
	assign(&st.Endpoint, p.Endpoint)
	assign(&st.Keepalive, p.Keepalive)
	for _, a := range p.AllowedIPs {
		st.AllowedIPs = append(st.AllowedIPs, a.Prefix)
	}
	d.status.Peers = append(d.status.Peers, st)
}

func assign[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}
