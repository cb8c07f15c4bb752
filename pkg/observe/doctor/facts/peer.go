// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// PeerPath is the result of a test of the path to one peer. It holds no secrets.
type PeerPath struct {
	Interface string
	Key       string // public key, base64
	Own       string // this host's public key, base64
	MTU       int    // of the interface, in bytes
	Mark      uint32
	// Configured is the name and port from which the endpoint was resolved, "" if it had none. Resolved are its addresses.
	Configured string
	Resolved   Result[[]netip.Addr]
	Endpoint   config.Endpoint // AddrPort invalid if unknown

	Route    Result[hostnet.Egress] // to the endpoint
	RouteMTU Result[int]
	PathMTU  config.PathMTU
	// Datagram is the error that a datagram from another port to the endpoint met; nil if nothing came back.
	Datagram error
	Ping     Result[time.Duration] // of the endpoint's address

	Before, After PeerState // the test
	Inside        []InnerAddress
}

// PeerState is the daemon's knowledge of the peer at one time.
type PeerState struct {
	At            time.Time
	LastHandshake time.Time // zero for never
	Rx, Tx        uint64    // bytes
	Probe         config.PeerProbe
}

// InnerAddress is an address of the peer inside the tunnel.
type InnerAddress struct {
	Addr   netip.Addr
	Device Result[string] // by which packets to it leave
	Ping   Result[time.Duration]
}

// Limits of a test.
const (
	handshakePatience = 7 * time.Second // two initiations, and the answer to the second one
	echoPatience      = 3 * time.Second
	pingPatience      = time.Second
	resolvePatience   = 5 * time.Second
	probePause        = 200 * time.Millisecond // a peer answers 8 probes per second
	maxInside         = 4                      // addresses to ping
)

// PeerOptions select a peer to test.
type PeerOptions struct {
	Dir       uapi.Dir
	Interface string
	Key       noise.PublicKey
	// Configured is the name and port from which the endpoint was resolved, "" if it had none. Host is the name.
	Configured, Host string
	Now              func() time.Time
}

// TestPeer tests the path to a peer. It looks up name and route, and sends datagrams and pings to
// the endpoint. It has the daemon start a handshake or send probes, and pings the peer's addresses
// inside the tunnel. It changes nothing. It takes 17 seconds at most.
func TestPeer(ctx context.Context, o PeerOptions) (*PeerPath, error) {
	client, err := o.Dir.Dial(o.Interface)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	p := &PeerPath{Interface: o.Interface, Key: o.Key.Base64(), Configured: o.Configured}
	t := peerTest{PeerOptions: o, client: client, path: p}
	if p.Before, err = t.state(); err != nil {
		return nil, err
	}
	t.resolve(ctx)
	t.lookUpRoutes()
	t.probeEndpoint(ctx)
	if p.After, err = t.converse(ctx); err != nil {
		return nil, err
	}
	return p, t.readStats()
}

// peerTest is one run of TestPeer.
type peerTest struct {
	PeerOptions
	client *uapi.Client
	path   *PeerPath
	allow  []netip.Prefix // the peer's allowed IPs
}

// state has the daemon probe the peer, and reads its state.
func (t *peerTest) state() (s PeerState, err error) {
	if s.Probe, err = t.client.Probe(t.Key); err != nil {
		return s, err
	}
	status, err := t.client.Status()
	if err != nil {
		return s, err
	}
	t.path.Mark, t.path.Own, s.At = status.FwMark, status.PublicKey.Base64(), t.Now()
	for i := range status.Peers {
		if p := &status.Peers[i]; p.PublicKey == t.Key {
			t.path.Endpoint, t.allow = p.Endpoint, p.AllowedIPs
			s.LastHandshake, s.Rx, s.Tx = p.LastHandshake, p.RxBytes, p.TxBytes
			return s, nil
		}
	}
	return s, fmt.Errorf("the peer was removed from %s during the test", t.Interface)
}

// resolve looks up the name of the endpoint.
func (t *peerTest) resolve(ctx context.Context) {
	if t.Host == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, resolvePatience)
	defer cancel()
	t.path.Resolved = result(hostnet.LookUpHost(ctx, t.Host))
}

// lookUpRoutes looks up the route to the endpoint, and to the peer's addresses inside.
func (t *peerTest) lookUpRoutes() {
	p := t.path
	if l, err := hostnet.FindLink(t.Interface); err == nil {
		p.MTU = l.MTU
	}
	if to := p.Endpoint; to.AddrPort.IsValid() {
		p.Route = result(hostnet.RouteTo(to.AddrPort.Addr(), to.Scope, p.Mark))
		p.RouteMTU = result(hostnet.RouteMTU(netip.Addr{}, to.AddrPort.Addr().Unmap(), to.Scope, p.Mark))
	}
	for _, prefix := range t.allow {
		if !prefix.IsSingleIP() || len(p.Inside) == maxInside {
			continue
		}
		e, err := hostnet.RouteTo(prefix.Addr(), 0, 0)
		p.Inside = append(p.Inside, InnerAddress{
			Addr: prefix.Addr(), Device: result(e.Device, err), Ping: Unknown[time.Duration](errNoPing),
		})
	}
}

var errNoPing = errors.New("not pinged: there is no session")

// probeEndpoint sends a datagram and a ping to the endpoint, not through the daemon.
func (t *peerTest) probeEndpoint(ctx context.Context) {
	p := t.path
	if !p.Endpoint.AddrPort.IsValid() || p.Route.Err != nil {
		p.Ping = Unknown[time.Duration](hostnet.ErrNoRoute)
		return
	}
	datagram := make(chan error, 1)
	go func() { datagram <- sendDatagram(ctx, p.Endpoint, p.Mark) }()
	p.Ping = result(ping(ctx, p.Endpoint.AddrPort.Addr(), p.Endpoint.Scope, p.Mark))
	p.Datagram = <-datagram
}

// converse waits for a session and for data both ways, and returns the state afterwards.
func (t *peerTest) converse(ctx context.Context) (s PeerState, err error) {
	began, patience := t.Now(), handshakePatience
	if t.path.Datagram != nil {
		patience = echoPatience // this host or another one refuses
	}
	for pinged := false; ; {
		if s, err = t.state(); err != nil {
			return s, err
		}
		waited := s.At.Sub(began)
		switch r := &s.Probe; {
		case !r.Up, r.Handshake.Error != "", t.isRefused(r), !r.Session && waited > patience, waited > handshakePatience+echoPatience:
			return s, nil
		case r.Session && !pinged:
			t.pingInside(ctx)
			pinged = true
		case r.Session && (!r.Echoes && waited > echoPatience/3 || r.Answered > t.path.Before.Probe.Answered):
			return s, nil
		}
		select {
		case <-ctx.Done():
			return s, ctx.Err()
		case <-time.After(probePause):
		}
	}
}

// isRefused reports whether the handshake has met a message that this host refuses since the test began.
func (t *peerTest) isRefused(r *config.PeerProbe) bool {
	return !r.Session && r.Handshake.Refused != "" && t.path.Before.Probe.Handshake.Refused == ""
}

// pingInside pings the peer's addresses inside the tunnel.
func (t *peerTest) pingInside(ctx context.Context) {
	done := make(chan struct{})
	for i := range t.path.Inside {
		a := &t.path.Inside[i]
		go func() {
			a.Ping = result(ping(ctx, a.Addr, 0, 0))
			done <- struct{}{}
		}()
	}
	for range t.path.Inside {
		<-done
	}
}

// readStats reads the path MTU that the daemon has found.
func (t *peerTest) readStats() error {
	var s Stats
	if err := t.client.Stats(&s); err != nil {
		return err
	}
	t.path.PathMTU = s.PathMTU[t.path.Key]
	return nil
}
