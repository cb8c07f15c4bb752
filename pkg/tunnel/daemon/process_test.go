// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/test/expect"
)

// party is an interface that a daemon process serves.
type party struct {
	*process
	name string
	key  noise.PrivateKey
}

// startPair starts two daemons in new namespaces, with the variables of env, and returns them when they have a session. Only the second one
// knows an endpoint, and nothing is sent later: it starts no handshake by itself.
func startPair(t *testing.T, env ...string) (a, b *party) {
	t.Helper()
	name := enterForDaemons(t)
	expect.NoError(t, hostnet.SetLinkUp("lo", 1<<16))
	a, b = &party{name: name + "a", key: newPrivateKey(t)}, &party{name: name + "b", key: newPrivateKey(t)}
	a.start(t, config.Peer{PublicKey: b.key.Public()}, env...)
	at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), a.status(t).ListenPort)
	b.start(t, config.Peer{PublicKey: a.key.Public(), Endpoint: &config.Endpoint{AddrPort: at}}, env...)
	client, err := uapi.Dial(b.name)
	expect.NoError(t, err)
	defer client.Close()
	expect.EventuallyNoError(t, "the daemons have a session", func() error {
		if r, err := client.Probe(a.key.Public()); err != nil || !r.Session { // starts a handshake
			return errors.Join(err, errors.New("no session"))
		}
		return nil
	})
	a.awaitHandshake(t, time.Time{})
	return a, b
}

// start starts the daemon, with one peer, and waits until it listens at a port of the kernel's choice.
func (p *party) start(t *testing.T, peer config.Peer, env ...string) {
	t.Helper()
	p.process = launch(t, p.name, env...)
	expect.NoError(t, hostnet.SetLinkUp(p.name, tun.DefaultMTU))
	client, err := uapi.Dial(p.name)
	expect.NoError(t, err)
	defer client.Close()
	expect.NoError(t, client.Configure(config.Device{PrivateKey: &p.key, Peers: []config.Peer{peer}}))
	expect.Eventually(t, "the interface is up", func() bool { return p.status(t).ListenPort != 0 })
}

func (p *party) status(t *testing.T) config.Status {
	t.Helper()
	client, err := uapi.Dial(p.name)
	expect.NoError(t, err)
	defer client.Close()
	status, err := client.Status()
	expect.NoError(t, err)
	return status
}

// awaitHandshake waits for another handshake than the one of the given time.
func (p *party) awaitHandshake(t *testing.T, before time.Time) {
	t.Helper()
	expect.Eventually(t, "another handshake", func() bool { return !p.status(t).Peers[0].LastHandshake.Equal(before) })
}

// TestRestartAfterKillRenewsSessions: the configuration names no endpoint, and the other end has nothing to send.
func TestRestartAfterKillRenewsSessions(t *testing.T) {
	dir := t.TempDir()
	a, b := startPair(t, stateDirEnv+"="+dir)
	saved := newEndpoints(Options{StateDir: dir}).path(a.name)
	expect.EventuallyNoError(t, "the endpoint is saved", func() error {
		f, err := readEndpoints(saved)
		if err == nil && len(f.Peers) != 1 {
			err = fmt.Errorf("%s has %d peers", saved, len(f.Peers))
		}
		return err
	})
	expect.NoError(t, a.Process.Kill())
	_ = a.Wait() // it was killed
	a.start(t, config.Peer{PublicKey: b.key.Public()}, stateDirEnv+"="+dir)
	a.awaitHandshake(t, time.Time{})
}

// TestCopyOfMachineRenewsSessions sends the event of vmgenid to both daemons.
func TestCopyOfMachineRenewsSessions(t *testing.T) {
	a, b := startPair(t)
	beforeA, beforeB := a.status(t).Peers[0].LastHandshake, b.status(t).Peers[0].LastHandshake
	expect.NoError(t, sendUevent(newGeneration))
	a.awaitHandshake(t, beforeA)
	b.awaitHandshake(t, beforeB)
}

// TestUpgradeLogsNoWarnings ignores those that a start without an upgrade logs on this machine, too.
func TestUpgradeLogsNoWarnings(t *testing.T) {
	a, b := startPair(t)
	predecessor, before := a.process, a.status(t).Peers[0].LastHandshake
	a.process = launch(t, a.name, takeoverEnv+"=1")
	if err := predecessor.Wait(); err != nil {
		t.Error("the old daemon: ", err)
	}
	a.awaitHandshake(t, before) // the new daemon answers
	b.stop(t)
	a.stop(t)
	usual := map[string]bool{}
	for _, w := range b.warnings() {
		usual[w] = true
	}
	for _, w := range append(predecessor.warnings(), a.warnings()...) {
		if !usual[w] {
			t.Errorf("logged: %s", w)
		}
	}
}

// warnings returns the messages at WARN and ERROR of a process that has ended.
func (p *process) warnings() (found []string) {
	for _, m := range regexp.MustCompile(`level=(?:WARN|ERROR) msg=("(?:[^"\\]|\\.)*"|\S+)`).FindAllStringSubmatch(p.log.String(), -1) {
		found = append(found, m[1])
	}
	return found
}

// TestStatsNameVersionAndFeatures: clients do not send keys that an older daemon refuses.
func TestStatsNameVersionAndFeatures(t *testing.T) {
	name, _ := startDaemon(t)
	client, err := uapi.Dial(name)
	expect.NoError(t, err)
	defer client.Close()
	var stats struct {
		Version   string
		Features  []string
		Reflector *config.ReflectorReport
	}
	expect.NoError(t, client.Stats(&stats))
	if stats.Version != testVersion || !slices.Equal(stats.Features, uapi.Features()) || stats.Reflector != nil {
		t.Errorf("got %+v", stats)
	}
}
