// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ropewalk/ropewalk/pkg/cluster/host"
	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/netio/atomicfile"
)

// persistedState is saved beside the node's key. It bridges the time between the end of an agent, or a reboot, and the first
// contact with the API. The routing keeps pod traffic from leaving in the clear.
// It holds no secrets.
type persistedState struct {
	Node types.UID         `json:"node"` // the node that it belongs to
	Name string            `json:"name,omitempty"`
	Mode mesh.Mode         `json:"mode"`
	Spec v1alpha1.NodeSpec `json:"spec"`
	Mesh *savedMesh        `json:"mesh,omitempty"` // the RopewalkMesh that was read last, in mesh mode
	// Settings are from the node's pool.
	Settings mesh.Settings `json:"settings,omitzero"`
	Routing  *host.Routing `json:"routing,omitempty"` // in mesh mode
	Tunnel   *savedTunnel  `json:"tunnel,omitempty"`  // in mesh mode
}

// savedTunnel is the tunnel's part of the persisted state.
type savedTunnel struct {
	Name  string         `json:"name,omitempty"`  // of the interface
	Addrs []netip.Addr   `json:"addrs,omitempty"` // the node's
	Pods  []netip.Prefix `json:"pods,omitempty"`  // the node's; the interface has an address of each
	// Peers also record the owner of each key. Otherwise a node could claim another's key while all agents restart.
	Peers []mesh.Peer `json:"peers,omitempty"`
	// Accepted are TunnelPlan.AcceptedPrefixes.
	Accepted map[string][]netip.Prefix `json:"acceptedPrefixes,omitempty"`
	// StrictSince is since when cleartext is refused; zero: it is not.
	StrictSince time.Time `json:"strictSince,omitzero"`
	// Unrouted are the peers to whose pods no routes led into the tunnel.
	Unrouted []string `json:"unrouted,omitempty"`
	// PostQuantum reports whether the engine that answered last knew post-quantum exchanges.
	PostQuantum bool `json:"postQuantum,omitempty"`
}

// allowsCleartext reports whether cleartext is allowed, before the cluster's state is known.
func (s *persistedState) allowsCleartext(c v1alpha1.Cleartext) bool {
	return allows(c, s.strictSince())
}

func (s *persistedState) strictSince() time.Time {
	if s.Tunnel == nil {
		return time.Time{}
	}
	return s.Tunnel.StrictSince
}

// stateFile is the file of the persisted state, in the key directory.
const stateFile = "agent.json"

// maxStateFile bounds how many bytes are read of it. The state of 5,000 nodes takes one megabyte.
const maxStateFile = 64 << 20

// loadPersistedState reads the state. It returns an empty one if there is no file, or if the file cannot be read.
func loadPersistedState(dir string) (s persistedState, err error) {
	f, err := os.Open(filepath.Join(dir, stateFile))
	if errors.Is(err, os.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("reading saved state: %w", err)
	}
	defer f.Close()
	if err := json.NewDecoder(io.LimitReader(f, maxStateFile)).Decode(&s); err != nil {
		return persistedState{}, fmt.Errorf("reading saved state: %w", err)
	}
	return s, nil
}

// save writes the state atomically.
func (s *persistedState) save(dir string) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return atomicfile.Replace(filepath.Join(dir, stateFile), text)
}

// stateStore holds the persisted state of an agent.
type stateStore struct {
	persisted  persistedState
	saveFailed bool // the file does not hold persisted
}

// savePersisted saves the state if it changed, or if the last attempt failed.
func (a *Agent) savePersisted(next persistedState) {
	if !a.saveFailed && reflect.DeepEqual(a.persisted, next) {
		a.persisted = next // the reconciler has this one: of thousands of peers, one copy is enough
		return
	}
	err := errors.Join(next.save(a.cfg.KeyDir), next.Routing.SaveBootRoutes(a.cfg.KeyDir))
	if err != nil && !a.saveFailed {
		a.cfg.Log.Warn("saving the state for the next agent or the blackhole routes for the next boot failed, retrying at each reconcile: both may be outdated", "error", err)
	}
	a.persisted, a.saveFailed = next, err != nil
}
