// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/ropewalk/ropewalk/pkg/cluster/engine"
	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// Engine is the tunnel of another process, as package engine describes it.
type Engine interface {
	// Status returns, among others, the public key. A key that is not the node's is replaced, with all peers.
	Status() (engine.Status, error)
	StatusOf(...noise.PublicKey) (config.Status, error)
	Configure(config.Device) error
	PostQuantum() (*config.PostQuantumReport, error)
	Probe(...noise.PublicKey) (map[noise.PublicKey]config.PeerProbe, error)
	Save(config.Device) error
	Forget() error
	// Watch calls a function when there is another engine, or none any more, until the context ends.
	Watch(context.Context, func())
}

// setup is the configuration of a tunnel's engine and interface, except key and peers.
type setup struct {
	port     uint16
	mtu      int // 0: none
	underlay config.UnderlayMode
}

// setupError is the engine's refusal of a setup. The setup before it is still in effect.
type setupError struct{ error }

func (e *setupError) Unwrap() error { return e.error }

// engineState has a reconciler's knowledge of the engine.
type engineState struct {
	engine Engine
	setup  setup               // as last configured; zero: not by this agent, or the engine was absent since
	have   []config.PeerStatus // during a reconcile: before its changes
	// refused is the setup that the engine refused last, and inEffect the port and underlay that it kept. Zero: none.
	refused, inEffect setup
	omitted           []string // RopewalkPeers that the engine does not have, since they require keys that it does not know
	// knowsPostQuantum reports whether the engine that answered last knew post-quantum exchanges.
	knowsPostQuantum bool
}

// desiredSetup returns the tunnel's configuration: from the settings, or the node's interface.
func (m *meshReconciler) desiredSetup(in reconcileInput) (setup, error) {
	o := &in.settings
	s := setup{port: cmp.Or(o.Port, DefaultPort), mtu: o.MTU, underlay: o.Underlay}
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

// configureEngine makes engine and interface match the desired state and returns the number of changes. The file is written first: an engine
// that starts again by itself has at least what it was told. A key of the node needs the file: an engine must never go back to the key before.
// Other changes do not wait for a disk that is full. An engine that is too old for the configuration keeps its file. The file for an absent one
// is for one like the last: policies are not left out because nobody answers.
func (m *meshReconciler) configureEngine(d *desiredTunnel, st *engine.Status, unusable error) (changes int, err error) {
	m.handover.stop()
	defer m.startHandover(d.saved.Peers)
	if unusable == nil {
		m.knowsPostQuantum = st.PostQuantum != nil
	}
	d.saved.PostQuantum = m.knowsPostQuantum
	peers := d.saved.Peers
	if m.omitted = nil; !m.knowsPostQuantum {
		peers, m.omitted = mesh.WithoutPostQuantum(peers)
	}
	whole := m.configuration(d, peers)
	if !m.knowsPostQuantum && d.postQuantum != config.PostQuantumRequired {
		whole.PostQuantum = nil // an engine that does not know it refuses the file, also if it is absent now
	}
	var unsaved error
	if unusable == nil || errors.Is(unusable, engine.ErrAbsent) {
		unsaved = m.save(whole, d.setup)
	}
	isNew := st.PublicKey != m.keys.current.public()
	if unusable != nil || unsaved != nil && isNew {
		m.setup = setup{}
		return 0, fmt.Errorf("configuring the tunnel %s: %w", m.cfg.Tunnel, errors.Join(unsaved, unusable))
	}
	m.have = st.Peers
	changes, policy := m.changePostQuantum(d.postQuantum, st)
	if policy != nil && st.PublicKey.IsZero() { // it has no tunnel, and gets none with a weaker policy
		return changes, errors.Join(policy, unsaved)
	}
	n := 1
	if isNew {
		err = m.replaceConfiguration(whole, d, peers, st)
	} else {
		n, err = m.changeDevice(&whole, d.setup, st)
	}
	if err != nil {
		return changes, errors.Join(m.handleRefusal(err, whole, d.setup, st), unsaved, policy)
	}
	changes += n
	if m.setup = d.setup; m.refused == d.setup {
		m.refused, unsaved = setup{}, m.engine.Save(whole)
	}
	n, err = m.cfg.Network.SetInterface(m.cfg.Tunnel, d.setup.mtu, d.saved.Pods)
	if changes += n; err != nil || isNew {
		return changes, errors.Join(err, unsaved, policy)
	}
	n, err = m.changePeers(peers, st)
	return changes + n, errors.Join(err, unsaved, policy)
}

// save saves the file. Its setup is the one before while the engine refuses the wanted one. The
// post-quantum policy is always the wanted one.
func (m *meshReconciler) save(whole config.Device, want setup) error {
	if want == m.refused {
		want = m.inEffect
	}
	whole.ListenPort, whole.Underlay = &want.port, &want.underlay
	return m.engine.Save(whole)
}

// handleRefusal makes an error of the engine a setupError if the engine has answered. The file then gets the setup in effect: an engine that
// starts again by itself must not have the refused one. An engine without an answer may have ended, and nothing is known of the next one.
func (m *meshReconciler) handleRefusal(err error, whole config.Device, want setup, st *engine.Status) error {
	if _, ok := errors.AsType[*uapi.Error](err); !ok {
		m.setup = setup{}
		return err
	}
	err = &setupError{err}
	if st.ListenPort == 0 { // it had no configuration
		return err
	}
	m.refused, m.inEffect = want, setup{port: st.ListenPort, underlay: m.setup.underlay}
	return errors.Join(err, m.save(whole, want))
}

// configuration returns the whole configuration of the engine.
func (m *meshReconciler) configuration(d *desiredTunnel, peers []mesh.Peer) config.Device {
	ports, mode, mark := m.cfg.Ports, config.SpreadAuto, m.intent.nodes.mark()
	return config.Device{
		PrivateKey: &m.keys.current.key, ListenPort: &d.setup.port, FwMark: &mark,
		Settings: config.Settings{Spread: &mode, SpreadPorts: &ports, Underlay: &d.setup.underlay, PostQuantum: &d.postQuantum}, ReplacePeers: true, Peers: mesh.Additions(peers, nil, nil),
	}
}

// replaceConfiguration gives the whole configuration to an engine with another key: none yet, or
// the node's last one. All peers are replaced, because sessions made with a different key do not
// carry over. A handshake with each node follows: it makes the node move this node's allowed IPs
// to the new key.
func (m *meshReconciler) replaceConfiguration(whole config.Device, d *desiredTunnel, peers []mesh.Peer, st *engine.Status) error {
	m.handshakes.stop() // its peers are about to be replaced
	if !m.knowsPostQuantum {
		whole.PostQuantum = nil // even if it is required
	}
	whole.Peers = mesh.Additions(mesh.AssignByHandshake(peers, st.Peers), st.Peers, m.sentEndpoints)
	if err := m.engine.Configure(whole); err != nil {
		return fmt.Errorf("configuring the tunnel %s: %w", m.cfg.Tunnel, err)
	}
	clear(m.sentEndpoints)
	m.noteConfigured(peers)
	m.handshakes = startHandshakes(m.engine, handshakeOrder(peers, st.Peers), m.cfg.Log)
	m.cfg.Log.Info("tunnel configured with the key of this node, starting handshakes with all nodes", "interface", m.cfg.Tunnel, "port", d.setup.port,
		"generation", m.keys.current.number, "public_key", m.keys.current.public(), "peers", len(whole.Peers))
	return nil
}

// changeDevice changes the settings that the engine does not have. The first time, it also sets
// all settings that the engine does not report. A port that is not open is set again: while
// another program has it, no packet arrives, and the engine's configuration does not show that.
func (m *meshReconciler) changeDevice(whole *config.Device, want setup, st *engine.Status) (changes int, err error) {
	var dev config.Device
	if st.ListenPort != want.port || !st.Up {
		dev.ListenPort = &want.port
		changes++
	}
	if st.FwMark != *whole.FwMark {
		dev.FwMark = whole.FwMark
		changes++
	}
	first := m.setup == setup{}
	if first {
		dev.Spread, dev.SpreadPorts = whole.Spread, whole.SpreadPorts
	}
	if first || m.setup.underlay != want.underlay {
		dev.Underlay = whole.Underlay
		changes++
	}
	if changes == 0 {
		return 0, nil
	}
	if err := m.engine.Configure(dev); err != nil {
		return 0, fmt.Errorf("changing the tunnel %s to port %d and underlay %s: %w", m.cfg.Tunnel, want.port, want.underlay, err)
	}
	return changes, nil
}

// changePostQuantum gives the engine another policy than its own, apart from settings that it may refuse. Its own may be of an earlier agent, or of
// an engine that was told nothing. An engine that does not know policies does without, which is an error if keys are required.
func (m *meshReconciler) changePostQuantum(want config.PostQuantum, st *engine.Status) (changes int, err error) {
	switch has := st.PostQuantum; {
	case has == nil && want == config.PostQuantumRequired:
		return 0, fmt.Errorf("%w: it does not know post-quantum exchanges, which the mesh requires, update ropewalk-engine", engine.ErrOutdated)
	case has == nil || has.Policy.Or(config.DefaultPostQuantum) == want.Or(config.DefaultPostQuantum):
		return 0, nil
	}
	if err := m.engine.Configure(config.Device{Settings: config.Settings{PostQuantum: &want}}); err != nil {
		return 0, fmt.Errorf("changing the tunnel %s to post-quantum %s: %w", m.cfg.Tunnel, want, err)
	}
	return 1, nil
}

// changePeers gives the engine the peers of a plan.
func (m *meshReconciler) changePeers(peers []mesh.Peer, st *engine.Status) (changes int, err error) {
	all := mesh.Diff(mesh.AssignByHandshake(peers, st.Peers), st.Peers, m.sentEndpoints)
	m.logForeign(m.cfg, all)
	if len(all) > 0 {
		if err := m.engine.Configure(config.Device{Peers: all}); err != nil {
			return 0, fmt.Errorf("changing peers of the tunnel %s: %w", m.cfg.Tunnel, err)
		}
		m.cfg.Log.Info("peers changed", "interface", m.cfg.Tunnel, "changes", len(all), "peers", len(peers))
	}
	m.noteConfigured(peers)
	m.sentEndpoints.Record(all)
	return len(all), nil
}
