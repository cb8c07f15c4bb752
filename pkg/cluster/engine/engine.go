// SPDX-License-Identifier: Apache-2.0

// Package engine configures the engine of a node in mode mesh: a `ropewalk run --keep --persist --config FILE` of another pod, or of a
// unit of the host. It holds the TUN device and the sessions, and needs the agent for changes only.
//
// Client speaks to its control socket as any client does, and writes the file with which it starts again by itself. Start reading there.
//
// Not for other programs: it may change without notice.
package engine

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/cluster/proof"
	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

var (
	// ErrAbsent means that nobody serves the interface.
	ErrAbsent = errors.New("no engine serves the interface")
	// ErrForeign means that a program other than ropewalk serves the interface.
	ErrForeign = errors.New("another program serves the interface")
	// ErrOutdated means that the engine does not understand all that a Client asks of it. One unknown key refuses a whole change.
	ErrOutdated = errors.New("the engine is too old for this agent")
)

// required are the features (uapi.Features) that a Client uses. An engine without get.public_key returns all peers, which does no harm.
// A release adds a feature here that engines of the release before have: engine and agent may differ by one.
var required = []string{
	"set.spread", "set.spread_ports", "set.underlay", "set.name", "set.endpoint_name", "probe.public_key",
}

// Client is a client of the engine of one interface. Each request has a connection of its own, so that the engine may be replaced or
// restarted at any time. It is safe for concurrent use, but for Save.
type Client struct {
	Dir  uapi.Dir // of the control sockets; empty: uapi.DefaultDir
	Name string   // of the interface
	File string   // with which the engine starts
}

// Status is the state of an engine.
type Status struct {
	config.Status
	Up bool // its listen port is open: not while its interface is down, or after another program had the port
	// PostQuantum is nil of an engine that does not know post-quantum exchanges.
	PostQuantum *config.PostQuantumReport
}

// stats is the part of an engine's statistics that an agent uses.
type stats struct {
	Version   string            `json:"version"`
	Features  []string          `json:"features"`
	Interface string            `json:"interface"`
	Up        bool              `json:"up"`
	Names     config.NameReport `json:"names"`
	Spread    struct {
		Peers map[string]struct {
			Active bool `json:"active"`
		} `json:"peers"`
	} `json:"spread"`
	PostQuantum *config.PostQuantumReport `json:"post_quantum"`
}

// Status returns the engine's configuration and peers: all fields of the get operation, names, and
// Spread.Active of peers. The error is ErrAbsent, ErrForeign, ErrOutdated, or a request's error.
func (c *Client) Status() (st Status, err error) {
	var more stats
	err = c.do(func(u *uapi.Client) error {
		if err := u.Stats(&more); err != nil {
			return fmt.Errorf("%w: %w", ErrForeign, err)
		}
		if more.Interface != c.Name {
			return fmt.Errorf("%w: it calls its interface %q, not %q", ErrForeign, more.Interface, c.Name)
		}
		if lacks := more.lacks(); len(lacks) > 0 {
			return fmt.Errorf("%w: version %s lacks %s, update ropewalk-engine", ErrOutdated, cmp.Or(more.Version, "unknown"), strings.Join(lacks, ", "))
		}
		st.Status, err = u.Status()
		return err
	})
	if err != nil {
		return Status{}, err
	}
	st.Up, st.PostQuantum = more.Up, more.PostQuantum
	st.AddNames(more.Names)
	if more.PostQuantum != nil {
		st.AddPostQuantum(*more.PostQuantum)
	}
	for i := range st.Peers {
		st.Peers[i].Spread.Active = more.Spread.Peers[st.Peers[i].PublicKey.Base64()].Active
	}
	return st, nil
}

// lacks returns the required features that the engine does not have.
func (s *stats) lacks() []string {
	return slices.DeleteFunc(slices.Clone(required), func(f string) bool { return slices.Contains(s.Features, f) })
}

// StatusOf returns the fields of the get operation for these peers, if they exist.
func (c *Client) StatusOf(peers ...noise.PublicKey) (st config.Status, err error) {
	err = c.do(func(u *uapi.Client) error {
		st, err = u.StatusOf(peers...)
		return err
	})
	return st, err
}

// PostQuantum returns which sessions have keys of post-quantum exchanges, nil of an engine that does not know them.
func (c *Client) PostQuantum() (*config.PostQuantumReport, error) {
	var more stats
	err := c.do(func(u *uapi.Client) error { return u.Stats(&more) })
	return more.PostQuantum, err
}

// Configure applies a change, all of it or nothing.
func (c *Client) Configure(dev config.Device) error {
	return c.do(func(u *uapi.Client) error { return u.Configure(dev) })
}

// Probe sends the peers messages that they answer, and starts a handshake with those with which the engine has no session. The reports have the
// answers to earlier probes. Peers that the engine does not have are left out.
func (c *Client) Probe(peers ...noise.PublicKey) (reports map[noise.PublicKey]config.PeerProbe, err error) {
	err = c.do(func(u *uapi.Client) error {
		reports, err = u.ProbePeers(peers...)
		return err
	})
	return reports, err
}

// FaultOf returns why a tunnel with this error is not up; "": the error says nothing about the engine.
func FaultOf(err error) proof.TunnelFault {
	switch {
	case errors.Is(err, ErrAbsent):
		return proof.EngineAbsent
	case errors.Is(err, ErrForeign):
		return proof.ForeignTunnel
	case errors.Is(err, ErrOutdated):
		return proof.EngineOutdated
	case errors.Is(err, unix.EADDRINUSE):
		return proof.PortInUse
	}
	return ""
}

// do calls f with a connection to the engine.
func (c *Client) do(f func(*uapi.Client) error) error {
	u, err := c.dir().Dial(c.Name)
	if uapi.IsNotRunning(err) {
		return fmt.Errorf("%w: %w", ErrAbsent, err)
	}
	if err != nil {
		return err
	}
	defer u.Close()
	return f(u)
}
