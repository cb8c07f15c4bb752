// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/test/expect"
)

// setPort sets the listen port of an interface over its socket.
func setPort(t *testing.T, name string, port uint16) error {
	t.Helper()
	client, err := uapi.Dial(name)
	expect.NoError(t, err)
	defer client.Close()
	return client.Configure(config.Device{ListenPort: &port})
}

// listens reports whether the interface has its port open.
func listens(t *testing.T, name string) bool {
	t.Helper()
	client, err := uapi.Dial(name)
	expect.NoError(t, err)
	defer client.Close()
	var stats struct {
		Up bool `json:"up"`
	}
	expect.NoError(t, client.Stats(&stats))
	return stats.Up
}

// bound returns the error of another program that wants a port.
func bound(port uint16) error {
	conn, err := net.ListenPacket("udp", fmt.Sprintf(":%d", port))
	if err != nil {
		return err
	}
	return conn.Close()
}

// TestTakenPortIsRefusedBeforeLinkUp: wg-quick sets the port before the link comes up, and ends with the error of wg.
func TestTakenPortIsRefusedBeforeLinkUp(t *testing.T) {
	name := enterForDaemons(t)
	a, b := name+"a", name+"b"
	launch(t, a)
	launch(t, b)
	const port, other = 51899, 51898
	expect.NoError(t, setPort(t, a, port))
	expect.NoError(t, setPort(t, a, port)) // its own reservation is no obstacle
	if err := setPort(t, b, port); !errors.Is(err, syscall.EADDRINUSE) {
		t.Fatalf("a port that another interface has reserved: got %v, want %v", err, syscall.EADDRINUSE)
	}
	if got := (&party{name: b}).status(t).ListenPort; got != 0 {
		t.Errorf("the refused port %d was set", got)
	}
	expect.NoError(t, hostnet.SetLinkUp(a, tun.DefaultMTU))
	expect.Eventually(t, "the port is open", func() bool { return listens(t, a) })
	if err := setPort(t, b, port); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a port in use: got %v, want %v", err, syscall.EADDRINUSE)
	}
	expect.NoError(t, setPort(t, b, other))
	if err := bound(other); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("another program binds the reserved port: %v", err)
	}
	expect.NoError(t, setPort(t, b, 0))
	expect.NoError(t, bound(other))
}

// TestReservationOutlivesUpgrades: the port is this interface's until the successor's successor opens it, and after a handover that fails.
func TestReservationOutlivesUpgrades(t *testing.T) {
	name := enterForDaemons(t)
	p := launch(t, name)
	const port = 51899
	reserved := func(when string) {
		t.Helper()
		if err := bound(port); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("%s another program binds the port: got %v, want %v", when, err, syscall.EADDRINUSE)
		}
	}
	expect.NoError(t, setPort(t, name, port))
	c, tunnel := requestFrom(t, name)
	expect.NoError(t, errors.Join(tunnel.CloseFDs(), c.Close()))
	expect.EventuallyNoError(t, "the predecessor runs again", func() error { return answers(name) })
	reserved("after a failed handover")
	for range 2 {
		successor := launch(t, name, takeoverEnv+"=1")
		expect.NoError(t, p.Wait())
		reserved("after an upgrade")
		p = successor
	}
	expect.NoError(t, hostnet.SetLinkUp(name, tun.DefaultMTU))
	expect.Eventually(t, "the port is open", func() bool { return listens(t, name) })
	p.stop(t)
	expect.NoError(t, bound(port))
}
