// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// setup is the configuration of a tunnel's engine and interface.
type setup struct {
	port uint16
	mtu  int // 0: none
}

// engineRunner holds the running engine and the backoff between engines.
type engineRunner struct {
	engine      Engine // nil: none runs
	hasNoPeers  bool   // no peers have been configured yet
	opened      time.Time
	reopenDelay time.Duration // minimum time from opened to the next engine
	setup       setup         // of the engine
}

// errEngineExited means that an engine exited early, and that the delay before the next one is not over.
var errEngineExited = errors.New("the tunnel's engine exited")

const (
	// minEngineLife is how long an engine must run for the next one to start without a delay. It is also the longest delay.
	minEngineLife = time.Minute
	// minReopenDelay is the first delay. It doubles with each engine in a row that exits early.
	minReopenDelay = time.Second
)

// desiredSetup returns the tunnel's configuration: from the spec, the agent's flags or the node's interface, in this order.
func (m *meshReconciler) desiredSetup(in reconcileInput) (setup, error) {
	s := setup{port: cmp.Or(uint16(in.spec.Port), m.cfg.Port, DefaultPort), mtu: cmp.Or(int(in.spec.MTU), m.cfg.MTU)}
	if s.mtu != 0 {
		return s, nil
	}
	link, err := m.cfg.Network.LinkMTU(in.self.Addrs)
	if err != nil {
		return s, err
	}
	s.mtu = link
	for _, a := range in.self.Addrs { // peers may use any IP version that the node has
		s.mtu = min(s.mtu, mesh.MTU(link, mesh.WireGuardLayer(a)))
	}
	return s, nil
}

// ensureEngine makes an engine run with the given configuration. It returns the number of changes to the port and the interface.
func (m *meshReconciler) ensureEngine(want setup, pods []netip.Prefix) (changes int, err error) {
	if m.engine != nil && isClosed(m.engine.Done()) {
		if m.engine.HandedOver() {
			return 0, errHandedOver
		}
		m.stop()
		m.reopenDelay = reopenDelayAfter(time.Since(m.opened), m.reopenDelay)
	}
	if m.engine == nil {
		if time.Since(m.opened) < m.reopenDelay {
			return 0, fmt.Errorf("running the tunnel %s: %w", m.cfg.Tunnel, errEngineExited)
		}
		if err := m.openEngine(want); err != nil {
			return 0, err
		}
	}
	if m.setup.port != want.port {
		if err := m.engine.Configure(config.Device{ListenPort: &want.port}); err != nil {
			return 0, fmt.Errorf("moving the tunnel %s to port %d: %w", m.cfg.Tunnel, want.port, err)
		}
		changes++
	}
	m.setup = want
	n, err := m.cfg.Network.SetInterface(m.cfg.Tunnel, want.mtu, pods)
	return changes + n, err
}

// reopenDelayAfter returns the next delay, after an engine that ran for a time and that was opened after the given delay.
func reopenDelayAfter(ran, delay time.Duration) time.Duration {
	if ran >= minEngineLife {
		return 0
	}
	return min(max(2*delay, minReopenDelay), minEngineLife)
}

// openEngine starts an engine. A goroutine requests a reconcile when it exits.
func (m *meshReconciler) openEngine(want setup) error {
	e, err := m.cfg.Open(m.cfg.Tunnel, want.mtu, m.cfg.Log)
	if err != nil {
		return fmt.Errorf("opening the tunnel %s: %w", m.cfg.Tunnel, err)
	}
	ports, mode := m.cfg.Ports, config.SpreadAuto
	err = e.Configure(config.Device{PrivateKey: &m.keys.current.key, ListenPort: &want.port, Spread: &mode, SpreadPorts: &ports})
	if err != nil {
		e.Close()
		return fmt.Errorf("setting key and port of the new tunnel %s: %w", m.cfg.Tunnel, err)
	}
	m.engine, m.setup, m.opened, m.hasNoPeers = e, want, time.Now(), true
	go func() {
		<-e.Done()
		m.trigger()
	}()
	m.cfg.Log.Info("tunnel is up", "interface", m.cfg.Tunnel, "port", want.port, "mtu", want.mtu, "key", m.keys.current.public())
	return nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
