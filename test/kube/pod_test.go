// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/test/expect"
)

// pod is a network namespace behind a node, as a CNI's bridge plugin creates it: the node forwards for it.
type pod struct {
	n     *node
	host  *netlab.Host
	addr  netip.Addr
	addr6 netip.Addr // invalid: it has none
	end   string     // the node's end of its device; "": there is none
}

// addPod creates the node's only pod.
func (n *node) addPod() *pod {
	l := n.l
	l.Helper()
	h, err := l.net.Host("p" + n.name[len("node-"):])
	expect.NoError(l, err)
	p := &pod{n: n, host: h}
	clusters := []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix(pods6)}
	var gateways, addrs []netip.Addr
	var c netlab.CableConfig
	for _, own := range n.allPods() {
		gateway := own.Addr().Next()
		addr := gateway.Next()
		gateways, addrs = append(gateways, gateway), append(addrs, addr)
		c.AddrsA, c.AddrsB = append(c.AddrsA, netip.PrefixFrom(gateway, own.Bits())), append(c.AddrsB, netip.PrefixFrom(addr, own.Bits()))
	}
	if p.addr = addrs[0]; l.dual {
		p.addr6 = addrs[1]
	}
	cable, err := l.net.Cable(n.host, h, c)
	expect.NoError(l, err)
	p.end = cable.DeviceA
	for i, gateway := range gateways {
		expect.NoError(l, h.RouteVia(clusters[i], gateway))
	}
	return p
}

// pods6 is the cluster's IPv6 prefix of pods.
const pods6 = "fd00:244::/32"

// six returns the same pods with their IPv6 addresses.
func six(pods []*pod) (all []*pod) {
	for _, p := range pods {
		other := *p
		other.addr = p.addr6
		all = append(all, &other)
	}
	return all
}

// echo describes ICMP echo (RFC 792; RFC 4443, section 4, whose checksum the kernel fills in).
type echo struct {
	network       string
	asked, answer byte
}

func echoFor(a netip.Addr) echo {
	if a.Is4() {
		return echo{"ip4:icmp", 8, 0}
	}
	return echo{"ip6:ipv6-icmp", 128, 129}
}

// ping sends one echo request and waits a second for the reply.
func (p *pod) ping(to *pod) error {
	var c net.PacketConn
	e := echoFor(p.addr)
	err := p.host.Do(func() (err error) {
		c, err = new(net.ListenConfig).ListenPacket(p.n.l.Context(), e.network, p.addr.String())
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	request := []byte{e.asked, 0, 0, 0, 0x12, 0x34, 0, 1}
	binary.BigEndian.PutUint16(request[2:], ^uint16(0x0800+0x1234+0x0001))
	if _, err := c.WriteTo(request, &net.IPAddr{IP: to.addr.AsSlice()}); err != nil {
		return err
	}
	if err := c.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	b := make([]byte, 256)
	for {
		n, from, err := c.ReadFrom(b)
		if err != nil {
			return fmt.Errorf("%s to %s: %w", p.addr, to.addr, err)
		}
		if n >= len(request) && b[0] == e.answer && from.String() == to.addr.String() {
			return nil
		}
	}
}

// secret is what pods send each other, repeatedly, so that any unencrypted packet shows it.
var secret = bytes.Repeat([]byte("nobody may read this. "), 50_000)

// exchange sends the secret over TCP and receives it back.
func (p *pod) exchange(to *pod) error { return p.exchangeOver(to, 8080, secret) }

// exchangeOver is exchange with a port and a text.
func (p *pod) exchangeOver(to *pod, port uint16, text []byte) error {
	var l net.Listener
	err := to.host.Do(func() (err error) {
		l, err = new(net.ListenConfig).Listen(p.n.l.Context(), "tcp", netip.AddrPortFrom(to.addr, port).String())
		return err
	})
	if err != nil {
		return err
	}
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			_, _ = io.Copy(c, c)
			c.Close()
		}
	}()
	var c net.Conn
	err = p.host.Do(func() (err error) {
		c, err = (&net.Dialer{Timeout: patience}).DialContext(p.n.l.Context(), "tcp", l.Addr().String())
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	go func() {
		_, _ = c.Write(text)
		_ = c.(*net.TCPConn).CloseWrite()
	}()
	back, err := io.ReadAll(c)
	if err == nil && !bytes.Equal(back, text) {
		err = fmt.Errorf("%d bytes came back, of %d", len(back), len(text))
	}
	return err
}
