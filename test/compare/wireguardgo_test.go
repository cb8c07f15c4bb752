// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"

	"golang.zx2c4.com/wireguard/conn"
	wg "golang.zx2c4.com/wireguard/device"
	wgtun "golang.zx2c4.com/wireguard/tun"
)

// startWireGuardGo starts a wireguard-go device with e, which has one lane.
func startWireGuardGo(tb testing.TB, e *memoryNet, s endConfig) {
	tb.Helper()
	t := &wireguardGoTUN{net: e, events: make(chan wgtun.Event, 1)}
	d := wg.NewDevice(t, &bind{net: e, peer: bindEndpoint{s.peer}}, wg.NewLogger(wg.LogLevelSilent, ""))
	tb.Cleanup(d.Close)
	set := fmt.Sprintf("private_key=%s\nlisten_port=%d\npublic_key=%s\nendpoint=%s\n", s.key.Hex(), s.peer.Port(), s.peerKey.Hex(), s.peer)
	for _, prefix := range s.allowed {
		set += fmt.Sprintf("allowed_ip=%s\n", prefix)
	}
	for _, key := range s.others {
		set += fmt.Sprintf("public_key=%s\n", key.Hex())
	}
	if err := d.IpcSet(set); err != nil {
		tb.Fatal(err)
	}
	if err := d.Up(); err != nil {
		tb.Fatal(err)
	}
}

// wireguardGoTUN implements wireguard-go's tun.Device. Its packets have no virtio-net header.
type wireguardGoTUN struct {
	net    *memoryNet
	events chan wgtun.Event
	once   sync.Once
}

func (t *wireguardGoTUN) File() *os.File             { return nil }
func (t *wireguardGoTUN) MTU() (int, error)          { return mtu, nil }
func (t *wireguardGoTUN) Name() (string, error)      { return "memory", nil }
func (t *wireguardGoTUN) Events() <-chan wgtun.Event { return t.events }
func (t *wireguardGoTUN) BatchSize() int             { return conn.IdealBatchSize }

// Read implements wireguard-go's tun.Device.
func (t *wireguardGoTUN) Read(bufs [][]byte, sizes []int, offset int) (int, error) {
	n := t.net.host[0].take(len(bufs), func(i int, p *element) bool {
		sizes[i] = copy(bufs[i][offset:], p.data)
		return true
	})
	if n == 0 {
		return 0, os.ErrClosed
	}
	return n, nil
}

// Write implements wireguard-go's tun.Device.
func (t *wireguardGoTUN) Write(bufs [][]byte, offset int) (int, error) {
	for i := range bufs {
		t.net.received.inspect([][]byte{bufs[i][offset:]})
	}
	t.net.received.add(len(bufs))
	return len(bufs), nil
}

func (t *wireguardGoTUN) Close() error {
	t.once.Do(func() {
		close(t.events)
		t.net.host[0].setClosed(true)
	})
	return nil
}

// bind implements wireguard-go's conn.Bind, with one receive function.
type bind struct {
	net  *memoryNet
	peer bindEndpoint
}

func (b *bind) BatchSize() int       { return conn.IdealBatchSize }
func (b *bind) SetMark(uint32) error { return nil }

func (b *bind) ParseEndpoint(s string) (conn.Endpoint, error) {
	a, err := netip.ParseAddrPort(s)
	return bindEndpoint{a}, err
}

func (b *bind) Open(port uint16) ([]conn.ReceiveFunc, uint16, error) {
	b.net.network[0].setClosed(false)
	return []conn.ReceiveFunc{b.receive}, port, nil
}

func (b *bind) Close() error {
	b.net.network[0].setClosed(true)
	return nil
}

func (b *bind) receive(packets [][]byte, sizes []int, eps []conn.Endpoint) (int, error) {
	n := b.net.network[0].take(len(packets), func(i int, p *element) bool {
		sizes[i], eps[i] = copy(packets[i], p.data), &b.peer
		return true
	})
	if n == 0 {
		return 0, net.ErrClosed
	}
	return n, nil
}

func (b *bind) Send(bufs [][]byte, _ conn.Endpoint) error {
	b.net.out.send(0, len(bufs), func(i int) ([][]byte, int, int) { return bufs[i : i+1], len(bufs[i]), 1 })
	return nil
}

// bindEndpoint implements wireguard-go's conn.Endpoint.
type bindEndpoint struct{ netip.AddrPort }

func (e bindEndpoint) ClearSrc()           {}
func (e bindEndpoint) SrcToString() string { return "" }
func (e bindEndpoint) DstToString() string { return e.String() }
func (e bindEndpoint) DstIP() netip.Addr   { return e.Addr() }
func (e bindEndpoint) SrcIP() netip.Addr   { return netip.Addr{} }

func (e bindEndpoint) DstToBytes() []byte {
	b, _ := e.MarshalBinary()
	return b
}
