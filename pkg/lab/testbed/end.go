// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"time"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/lab/traffic"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// EndConfig configures an End. Daemon, Traffic and Prefix are as in Config.
type EndConfig struct {
	Daemon  Daemon
	Traffic []string
	Prefix  string
	// Kernel, if not nil, puts the in-kernel WireGuard in place of a Daemon, and configures an interface in the calling thread's namespace.
	// Without both there is no tunnel, and the traffic is in that namespace.
	Kernel func(iface string, d *config.Device) error
	// Secret is known to both ends. Their private keys follow from it.
	Secret noise.PresharedKey
	// Far is where the far end listens. The far end itself has an unspecified address, and listens on the port.
	Far netip.AddrPort
	// Port is where the near end listens; 0 lets the kernel choose. Near is the same with the address, for the far end. If it is not
	// valid, that learns it from the first message, which Tailscale's fork does not.
	Port uint16
	Near netip.AddrPort
	// MTU of the tunnel in bytes; 0 means 1420.
	MTU int
	// Network, if valid, is an IPv4 network behind the near end's tunnel. The traffic of the near end is there, at NetworkAddr, and is
	// forwarded. It is in a namespace, with a cable in place of a second NIC.
	Network netip.Prefix
}

// End is one end of a tunnel between two machines. The daemon runs in the calling thread's namespace, the traffic in a namespace of its own.
type End struct {
	cfg         Config
	net         *netlab.Lab
	here, there *Side
	kernel      func(string, *config.Device) error // EndConfig.Kernel, once its interface is there
}

// StartEnd starts an end. The caller closes it. The near end returns when the far end answers, which needs Serve there.
func StartEnd(ctx context.Context, c EndConfig) (*End, error) {
	e, err := OpenEnd(ctx, c)
	if err != nil || c.Far.Addr().IsUnspecified() {
		return e, err
	}
	if err := e.await(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("starting one end of a tunnel: %w", err), e.Close())
	}
	return e, nil
}

// OpenEnd starts an end, and does not wait for the other one. The caller closes it.
func OpenEnd(ctx context.Context, c EndConfig) (*End, error) {
	e := &End{cfg: Config{Daemon: c.Daemon, Traffic: c.Traffic, Prefix: c.Prefix}}
	e.cfg.complete()
	var err error
	if e.net, err = netlab.New(e.cfg.Prefix); err != nil {
		return nil, err
	}
	_ = uapi.DefaultDir.Sweep(socketGlob, socketGrace) // a socket that is left does not disturb
	if err := e.build(ctx, &c); err != nil {
		return nil, errors.Join(fmt.Errorf("starting one end of a tunnel: %w", err), e.Close())
	}
	return e, nil
}

func (e *End) build(ctx context.Context, c *EndConfig) (err error) {
	near, far := sideOf(1, &c.Secret, "near"), sideOf(2, &c.Secret, "far")
	if e.here, e.there = near, far; c.Far.Addr().IsUnspecified() {
		e.here, e.there = far, near
	}
	if e.here.Host, err = e.net.Here(); err != nil {
		return err
	}
	e.here.App = e.here.Host
	if c.Kernel != nil || c.Daemon != nil {
		if err := e.tunnel(ctx, c); err != nil {
			return err
		}
	}
	if c.Network.IsValid() {
		if err := e.forward(c); err != nil {
			return err
		}
	}
	e.here.server, err = startServer(ctx, e.here.App, e.cfg.Traffic)
	return err
}

func (e *End) tunnel(ctx context.Context, c *EndConfig) (err error) {
	if e.here.App, err = e.net.Host("traffic"); err != nil {
		return err
	}
	name := "rb" + e.net.Tag() + "e"
	if c.Kernel != nil {
		e.here.Iface = name
		if err = e.here.Host.AddWireGuard(name); err == nil {
			e.kernel = c.Kernel
		}
	} else {
		err = e.here.start(ctx, e.cfg.Daemon, name)
	}
	if err != nil {
		return err
	}
	return e.configure(c)
}

// forward routes the network. At the near end the traffic moves to it.
func (e *End) forward(c *EndConfig) error {
	gateway := e.here.App
	if c.Far.Addr().IsUnspecified() {
		return gateway.RouteThrough(c.Network.Masked(), e.here.Iface)
	}
	behind, err := e.net.Host("behind")
	if err != nil {
		return err
	}
	addr := NetworkAddr(c.Network)
	_, err = e.net.Cable(gateway, behind, netlab.CableConfig{
		Queues: runtime.NumCPU(), MTU: cmp.Or(c.MTU, tunnelMTU),
		AddrsA: []netip.Prefix{netip.PrefixFrom(addr.Prev(), c.Network.Bits())}, AddrsB: []netip.Prefix{netip.PrefixFrom(addr, c.Network.Bits())},
	})
	if err != nil {
		return err
	}
	e.here.App = behind
	return errors.Join(gateway.Forward(), behind.RouteVia(netip.MustParsePrefix("0.0.0.0/0"), addr.Prev()))
}

// NetworkAddr is the second address of a network, where EndConfig.Network has the traffic. The first one is the gateway's.
func NetworkAddr(network netip.Prefix) netip.Addr { return network.Masked().Addr().Next().Next() }

// NearAddr and FarAddr are the IPv4 addresses of the ends inside a tunnel.
func NearAddr() netip.Addr { return sideOf(1, new(noise.PresharedKey), "").Tunnel[0].Addr() }

// FarAddr is NearAddr of the far end.
func FarAddr() netip.Addr { return sideOf(2, new(noise.PresharedKey), "").Tunnel[0].Addr() }

// Host is where the traffic of this end begins and ends.
func (e *End) Host() *netlab.Host { return e.here.App }

// Err reports a daemon that exited unexpectedly.
func (e *End) Err() error {
	if e.here.Daemon == nil {
		return nil
	}
	return e.here.Daemon.Err()
}

// Ping is Path.Ping from this end to an address.
func (e *End) Ping(ctx context.Context, to netip.Addr, end time.Time, count int, interval time.Duration) ([]time.Duration, int, error) {
	rtts, sent, err := ping(ctx, e.here.App, to, end, count, interval)
	return rtts, sent, errors.Join(err, e.Err())
}

// Planned reports whether the daemon, which is ropewalk's, uses a port plan of the other end.
func (e *End) Planned() (bool, error) {
	c, err := uapi.Dial(e.here.Iface)
	if err != nil {
		return false, err
	}
	defer c.Close()
	var stats struct {
		Spread config.SpreadReport `json:"spread"`
	}
	err = c.Stats(&stats)
	return stats.Spread.Peers[e.there.key.Public().String()].Planned, err
}

// sideOf makes a side whose key follows from the secret.
func sideOf(n byte, secret *noise.PresharedKey, role string) *Side {
	sum := sha256.Sum256(append([]byte("ropewalk bench underlay "+role), secret[:]...))
	return &Side{Tunnel: [2]netip.Prefix{v4(10, 77, 0, n), v6(1, n)}, key: noise.PrivateKey(sum)}
}

// configure makes the other end the only peer, and moves the interface to the traffic.
func (e *End) configure(c *EndConfig) error {
	p := config.Peer{PublicKey: e.there.key.Public()}
	for _, t := range e.there.Tunnel {
		p.AllowedIPs = append(p.AllowedIPs, config.AllowedIP{Prefix: netip.PrefixFrom(t.Addr(), t.Addr().BitLen())})
	}
	port := c.Port
	if c.Far.Addr().IsUnspecified() {
		port = c.Far.Port()
		if c.Near.IsValid() {
			p.Endpoint = &config.Endpoint{AddrPort: c.Near}
		}
		if c.Network.IsValid() {
			p.AllowedIPs = append(p.AllowedIPs, config.AllowedIP{Prefix: c.Network.Masked()})
		}
	} else {
		p.Endpoint = &config.Endpoint{AddrPort: c.Far}
	}
	d := config.Device{PrivateKey: &e.here.key, ListenPort: &port, ReplacePeers: true, Peers: []config.Peer{p}}
	err := e.apply(&d)
	if err == nil {
		err = e.here.Host.Move(e.here.Iface, e.here.App)
	}
	if err != nil {
		return fmt.Errorf("configuring %s: %w", e.here.Iface, err)
	}
	return e.here.App.SetUp(e.here.Iface, cmp.Or(c.MTU, tunnelMTU), e.here.Tunnel[:]...)
}

// apply configures the interface.
func (e *End) apply(d *config.Device) error {
	if e.kernel != nil {
		return e.here.Host.Do(func() error { return e.kernel(e.here.Iface, d) })
	}
	c, err := uapi.Dial(e.here.Iface)
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Configure(*d)
}

const (
	requestPort = 5211 // where the far end takes requests for traffic
	// maxRequest is the longest traffic that the far end sends on request.
	maxRequest = time.Minute
)

// trafficRequest asks the far end to send traffic to the near one.
type trafficRequest struct {
	Kind          traffic.Kind
	Streams, Size int
	Duration      time.Duration
	BitsPerSecond float64
}

// Serve sends traffic at the far end when the near end asks for it, until ctx is done. The requests arrive through the tunnel.
func (e *End) Serve(ctx context.Context) error {
	var l net.Listener
	at := netip.AddrPortFrom(e.here.Tunnel[0].Addr(), requestPort)
	err := e.here.App.Do(func() (err error) {
		l, err = net.Listen("tcp", at.String())
		return err
	})
	if err != nil {
		return fmt.Errorf("listening for requests: %w", err)
	}
	s := http.Server{Handler: http.HandlerFunc(e.handle), ReadTimeout: readyTimeout, BaseContext: func(net.Listener) context.Context { return ctx }}
	defer context.AfterFunc(ctx, func() { s.Close() })()
	go func() {
		<-e.here.Daemon.Done()
		s.Close()
	}()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving requests: %w", err)
	}
	return e.here.Daemon.Err()
}

// readyTimeout bounds the time in which a request arrives.
const readyTimeout = 10 * time.Second

// handle answers GET with nothing, and a trafficRequest with its result.
func (e *End) handle(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		return
	}
	var q trafficRequest
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<10)).Decode(&q)
	if err == nil && (q.Duration <= 0 || q.Duration > maxRequest) {
		err = fmt.Errorf("traffic for %v: want more than 0 and at most %v", q.Duration, maxRequest)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	res, err := e.Load(r.Context(), Flow{Config: traffic.Config{
		Kind: q.Kind, Streams: q.Streams, Size: q.Size, Duration: q.Duration, BitsPerSecond: q.BitsPerSecond,
	}})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_ = json.NewEncoder(w).Encode(res) // the near end notices a failure
}

// Load runs a flow and returns what arrived, as Lab.Load does. A flow that is reversed comes from the other end.
func (e *End) Load(ctx context.Context, f Flow) (traffic.Result, error) {
	if f.Reverse {
		return e.request(ctx, f.Config)
	}
	f.Server = netip.AddrPortFrom(e.there.Tunnel[0].Addr(), serverPort)
	res, _, err := runClient(ctx, e.cfg.Traffic, e.here.App, f.Config)
	return res, errors.Join(e.Err(), err)
}

// SetUnderlay is Lab.SetUnderlay for this end. The other end keeps its underlay.
func (e *End) SetUnderlay(ctx context.Context, mode config.UnderlayMode) (config.UnderlayReport, error) {
	return e.here.setUnderlay(ctx, mode)
}

func (e *End) request(ctx context.Context, c traffic.Config) (res traffic.Result, err error) {
	body, err := json.Marshal(trafficRequest{c.Kind, c.Streams, c.Size, c.Duration, c.BitsPerSecond})
	if err != nil {
		return res, err
	}
	err = e.call(ctx, http.MethodPost, body, &res)
	return res, errors.Join(err, damage(res))
}

// await returns when the far end answers.
func (e *End) await(ctx context.Context) error {
	err := e.here.Await(ctx, func() error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		return e.call(ctx, http.MethodGet, nil, nil)
	})
	if err != nil {
		return fmt.Errorf("waiting for the far end: %w", err)
	}
	return nil
}

// call sends a request to the far end and decodes its answer, unless that is nil.
func (e *End) call(ctx context.Context, method string, body []byte, answer any) error {
	dial := func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
		err = e.here.App.Do(func() error {
			var d net.Dialer
			conn, err = d.DialContext(ctx, network, addr)
			return err
		})
		return conn, err
	}
	client := http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	to := netip.AddrPortFrom(e.there.Tunnel[0].Addr(), requestPort)
	q, err := http.NewRequestWithContext(ctx, method, "http://"+to.String(), bytes.NewReader(body))
	if err != nil {
		return err
	}
	a, err := client.Do(q)
	if err != nil {
		return err
	}
	defer a.Body.Close()
	if a.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(a.Body, 1<<10))
		return fmt.Errorf("the far end answered %s: %s", a.Status, bytes.TrimSpace(text))
	}
	if answer == nil {
		return nil
	}
	return json.NewDecoder(a.Body).Decode(answer)
}

// Close stops the daemon and removes everything that the End created.
func (e *End) Close() error {
	var err error
	if e.here != nil {
		err = e.here.stop()
	}
	if e.kernel != nil && e.here.App.RemoveLink(e.here.Iface) != nil { // it was not moved
		err = errors.Join(err, e.here.Host.RemoveLink(e.here.Iface))
	}
	return errors.Join(err, e.net.Close())
}
