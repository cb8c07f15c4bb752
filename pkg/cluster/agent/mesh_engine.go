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
	"github.com/ropewalk/ropewalk/pkg/tunnel/daemon"
)

// setup is the configuration of a tunnel's engine and interface.
type setup struct {
	port      uint16
	mtu       int    // 0: none
	keepalive uint16 // of other nodes, in seconds; 0: none
	underlay  config.UnderlayMode
}

// setupError is the host's refusal of a setup. The setup before it is still in effect, unless no engine runs.
type setupError struct {
	error
	restarts bool // trying it again restarts the engine
}

func (e *setupError) Unwrap() error { return e.error }

// engineRunner holds the running engine and the backoff between engines.
type engineRunner struct {
	engine      Engine // nil: none runs
	hasNoPeers  bool   // no peers have been configured yet
	opened      time.Time
	reopenDelay time.Duration // minimum time from opened to the next engine
	setup       setup         // of the engine
	keepalive   uint16        // that its nodes have, in seconds
}

// errEngineExited means that an engine exited early, and that the delay before the next one is not over.
var errEngineExited = errors.New("the tunnel's engine exited")

const (
	// minEngineLife is how long an engine must run for the next one to start without a delay. It is also the longest delay.
	minEngineLife = time.Minute
	// minReopenDelay is the first delay. It doubles with each engine in a row that exits early.
	minReopenDelay = time.Second
)

// desiredSetup returns the tunnel's configuration: from the settings, or the node's interface.
func (m *meshReconciler) desiredSetup(in reconcileInput) (setup, error) {
	o := &in.settings
	s := setup{port: cmp.Or(o.Port, DefaultPort), mtu: o.MTU, keepalive: o.Keepalive, underlay: config.UnderlayAuto}
	if o.Underlay != nil {
		s.underlay = *o.Underlay
	}
	if s.mtu != 0 {
		return s, nil
	}
	link, err := m.cfg.Network.LinkMTU(in.self.Addrs)
	if err != nil {
		return s, err
	}
	s.mtu = link
	for _, a := range in.self.Addrs { // peers may use any IP version that the node has
		s.mtu = min(s.mtu, mesh.MTU(link, a))
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
	if changes, err = m.changeEngine(want); err != nil {
		return 0, err
	}
	m.setup = want
	n, err := m.cfg.Network.SetInterface(m.cfg.Tunnel, want.mtu, pods)
	return changes + n, err
}

// changeEngine changes what can change while the engine runs.
func (m *meshReconciler) changeEngine(want setup) (changes int, err error) {
	if m.setup.port != want.port {
		if err := m.engine.Configure(config.Device{ListenPort: &want.port}); err != nil {
			return 0, &setupError{error: fmt.Errorf("moving the tunnel %s to port %d: %w", m.cfg.Tunnel, want.port, err)}
		}
		m.setup.port = want.port
		changes++
	}
	if m.setup.underlay != want.underlay {
		if err := m.engine.Configure(config.Device{Underlay: &want.underlay}); err != nil {
			return 0, &setupError{error: fmt.Errorf("changing the underlay of the tunnel %s to %s: %w", m.cfg.Tunnel, want.underlay, err)}
		}
		changes++
	}
	return changes, nil
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
	ports, mode, mark := m.cfg.Ports, config.SpreadAuto, m.cfg.NodeEncryption.mark()
	initial := config.Device{
		PrivateKey: &m.keys.current.key, ListenPort: &want.port, FwMark: &mark, Spread: &mode, SpreadPorts: &ports, Underlay: &want.underlay,
	}
	e, err := m.cfg.Open(TunnelOptions{Name: m.cfg.Tunnel, MTU: want.mtu, Workers: daemon.AutoWorkers, Nice: daemon.LaneNice, Initial: initial}, m.cfg.Log)
	if err != nil {
		return &setupError{fmt.Errorf("opening the tunnel %s: %w", m.cfg.Tunnel, err), true}
	}
	if err := e.Configure(initial); err != nil { // an engine that was taken over has another one
		e.Close()
		return &setupError{fmt.Errorf("setting key and port of the new tunnel %s: %w", m.cfg.Tunnel, err), true}
	}
	m.engine, m.setup, m.opened, m.hasNoPeers = e, want, time.Now(), true
	go func() {
		<-e.Done()
		m.trigger()
	}()
	m.cfg.Log.Info("tunnel is up", "interface", m.cfg.Tunnel, "port", want.port, "mtu", want.mtu, "public_key", m.keys.current.public())
	return nil
}
