// SPDX-License-Identifier: Apache-2.0

package tunnel_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/netio/tun/tuntest"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/tunnel"
	"github.com/ropewalk/ropewalk/test/expect"
)

// awaitStatus waits until the control socket of an interface answers with one peer.
func awaitStatus(t *testing.T, name string, done <-chan error) {
	t.Helper()
	expect.EventuallyNoError(t, "the tunnel has its peer", func() error {
		select {
		case err := <-done:
			t.Fatalf("the tunnel ended: %v", err)
		default:
		}
		st, err := statusOf(name)
		if err == nil && len(st.Peers) != 1 {
			err = fmt.Errorf("%s has %d peers", name, len(st.Peers))
		}
		return err
	})
}

// statusOf asks the control socket.
func statusOf(name string) (st config.Status, err error) {
	c, err := uapi.Dial(name)
	if err != nil {
		return st, err
	}
	defer c.Close()
	return c.Status()
}

func TestNewNeedsTUN(t *testing.T) {
	if _, err := tunnel.New(tunnel.Config{}); !errors.Is(err, tunnel.ErrNoTUN) {
		t.Error(err)
	}
}

func TestContextEndsTunnel(t *testing.T) {
	network := underlaytest.NewNetwork(nil)
	ctx, cancel := context.WithCancel(t.Context())
	tn, _, _ := memoryTunnel(ctx, network, "192.0.2.1", "2001:db8::1")
	cancel()
	<-tn.Done()
	tn.Close()
}

func TestCopyAndResumeOfMachineRenewSessions(t *testing.T) {
	network := underlaytest.NewNetwork(nil)
	a, hostA, keyA := memoryTunnel(t.Context(), network, "192.0.2.1", "2001:db8::1")
	b, hostB, keyB := memoryTunnel(t.Context(), network, "192.0.2.2", "2001:db8::2")
	defer a.Close()
	defer b.Close()
	addPeer(a, keyB.Public(), "192.0.2.2:51820", "10.0.0.2/32")
	addPeer(b, keyA.Public(), "192.0.2.1:51820", "10.0.0.1/32")
	exchange(t.Context(), hostA, hostB, append(make([]byte, offload.VnetHdrLen), udpPacket("10.0.0.1", "10.0.0.2", "hello")...))
	for name, renew := range map[string]func(){"copied": a.MachineCopied, "resumed": a.MachineResumed} {
		before := a.Status().Peers[0].LastHandshake
		renew()
		expect.Eventually(t, "the session is renewed: "+name, func() bool { return a.Status().Peers[0].LastHandshake.After(before) })
	}
}

func TestFormatShowsNoKeys(t *testing.T) {
	tn, err := tunnel.New(tunnel.Config{TUN: tuntest.NewFake(tuntest.FakeConfig{Name: "fake7"})})
	if err != nil {
		t.Fatal(err)
	}
	defer tn.Close()
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x"} {
		if got := fmt.Sprintf(verb, tn); got != "tunnel fake7" || strings.Contains(got, "Key") {
			t.Errorf("%s prints %q", verb, got)
		}
	}
}

// TestTunnelServesRealTUN runs the example on a host of its own.
func TestTunnelServesRealTUN(t *testing.T) {
	lab, err := netlab.New("embed")
	if errors.Is(err, netlab.ErrPrivileges) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer lab.Close()
	host, err := lab.Host("a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skip(err)
	}
	name := "rwx" + strings.ToLower(rand.Text()[:6])
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- host.Do(func() error { return serveRealTUN(ctx, name) }) }()
	awaitStatus(t, name, done)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
