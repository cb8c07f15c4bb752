// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/udp"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
)

const (
	vnetHdrLen = offload.VnetHdrLen
	listenPort = 51820
	tunName    = "scale0"
)

// node is one end of a tunnel in this process: a device whose TUN and underlay are measured.
type node struct {
	host   *netlab.Host
	key    noise.PrivateKey
	device *device.Device
	tx, rx *laneTimer
	outer  netip.Prefix
	inner  netip.Prefix
}

func newNode(lab *netlab.Lab, name string, n byte, clock int64) (*node, error) {
	host, err := lab.Host(name)
	if err != nil {
		return nil, err
	}
	key, err := noise.NewPrivateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making a key: %w", err)
	}
	return &node{
		host: host, key: key, tx: &laneTimer{clock: clock}, rx: &laneTimer{clock: clock},
		outer: netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 168, 78, n}), 24),
		inner: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 78, 0, n}), 24),
	}, nil
}

// start creates and configures the node's interface, with one lane and spread off.
func (n *node) start(peer *node) error {
	var t tun.Device
	err := n.host.Do(func() (err error) {
		t, err = tun.Open(tun.Config{Name: tunName, Queues: 1})
		return err
	})
	if err != nil {
		return err
	}
	n.device = device.New(device.Config{
		TUN: &timedTUN{t, n.tx, n.rx}, OpenPort: n.open, Log: slog.New(slog.DiscardHandler),
	})
	n.device.Start()
	off, port := config.SpreadOff, uint16(listenPort)
	err = n.device.Configure(config.Device{
		PrivateKey: &n.key, ListenPort: &port, Settings: config.Settings{Spread: &off},
		Peers: []config.Peer{{
			PublicKey:  peer.key.Public(),
			Endpoint:   &config.Endpoint{AddrPort: netip.AddrPortFrom(peer.outer.Addr(), listenPort)},
			AllowedIPs: []config.AllowedIP{{Prefix: netip.PrefixFrom(peer.inner.Addr(), 32)}},
		}},
	})
	if err != nil {
		return fmt.Errorf("configuring %s: %w", n.host.Name(), err)
	}
	return n.host.SetUp(tunName, 0, n.inner)
}

func (n *node) open(o device.PortOptions) (p underlay.Port, err error) {
	err = n.host.Do(func() error {
		port, err := udp.Open(udp.Config{Port: o.Port, Lanes: o.Lanes, Mark: o.Mark, ReceiveBuffer: 1 << 20})
		if err != nil {
			return err
		}
		p = &timedPort{port, n.tx, n.rx}
		return nil
	})
	return p, err
}

// tunnel is two nodes, and the cable between them.
type tunnel struct {
	lab  *netlab.Lab
	a, b *node
}

// cableKind is the offload configuration of the cable between two nodes.
type cableKind int

const (
	// plainCable carries trains. The sender's thread does the receiver's softirq work.
	plainCable cableKind = iota
	// frameCable carries single frames. A kernel thread receives and merges them (threaded NAPI, GRO), as softirqs do behind a NIC.
	frameCable
)

func newTunnel(kind cableKind, clock int64) (r *tunnel, err error) {
	r = &tunnel{}
	if r.lab, err = netlab.New("scale"); err != nil {
		return nil, err
	}
	if err := r.build(kind, clock); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

func (r *tunnel) build(kind cableKind, clock int64) (err error) {
	if r.a, err = newNode(r.lab, "a", 1, clock); err != nil {
		return err
	}
	if r.b, err = newNode(r.lab, "b", 2, clock); err != nil {
		return err
	}
	_, err = r.lab.Cable(r.a.host, r.b.host, netlab.CableConfig{
		AddrsA: []netip.Prefix{r.a.outer}, AddrsB: []netip.Prefix{r.b.outer},
	})
	if err != nil {
		return err
	}
	for _, n := range []*node{r.a, r.b} {
		if err := n.configureCable(kind); err != nil {
			return err
		}
	}
	return errors.Join(r.a.start(r.b), r.b.start(r.a))
}

// configureCable sets the offloads of the node's end of the cable. /sys shows a namespace only inside ip-netns(8).
func (n *node) configureCable(kind cableKind) error {
	if kind == plainCable {
		return nil
	}
	commands := [][]string{
		{"ip", "netns", "exec", n.host.Name(), "ethtool", "-K", "cable0", "gro", "on", "tso", "off"},
		{"ip", "netns", "exec", n.host.Name(), "sh", "-c", "echo 1 >/sys/class/net/cable0/threaded"},
		{"ip", "-n", n.host.Name(), "link", "set", "cable0", "gso_max_segs", "1"},
	}
	for _, argv := range commands {
		if err := command(argv...); err != nil {
			return err
		}
	}
	return nil
}

func (r *tunnel) close() error {
	for _, n := range []*node{r.a, r.b} {
		if n != nil && n.device != nil {
			n.device.Close()
		}
	}
	return r.lab.Close()
}

// connectTimeout bounds the time of the first connection, with its handshake.
const connectTimeout = 20 * time.Second

// transfer sends TCP from a to b for the time d, and returns the result.
func (r *tunnel) transfer(ctx context.Context, streams int, d time.Duration) (transfer, error) {
	return runApps(ctx, r.a.host, r.b.host, netip.AddrPortFrom(r.b.inner.Addr(), appPort), streams, d, nil)
}
