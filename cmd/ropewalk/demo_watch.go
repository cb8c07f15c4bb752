// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netlab"
	"github.com/ropewalk/ropewalk/pkg/traffic"
)

const (
	// demoWholeOneIn is how many trains go by for each that is searched to its end; of the others, the beginning is.
	demoWholeOneIn = 32
	demoSeeTimeout = 5 * time.Second
	demoExamples   = 3
)

// demoCable is what the capture on the cable found. A train counts as one packet.
type demoCable struct {
	Data      uint64   `json:"data"`      // WireGuard data messages
	Handshake uint64   `json:"handshake"` // WireGuard initiations, responses and cookie replies
	Neighbour uint64   `json:"neighbour"` // ARP, IPv6 neighbour discovery and multicast listener reports
	Foreign   uint64   `json:"foreign"`   // anything else: there should be none
	Plaintext uint64   `json:"plaintext"` // packets with the payload's marker in them: there should be none
	Missed    uint64   `json:"missed"`    // packets that the capture was too slow for
	Examples  []string `json:"examples,omitempty"`
}

func (c demoCable) seen() uint64 { return c.Data + c.Handshake + c.Neighbour + c.Foreign }

// demoWatch judges every packet on the cable.
type demoWatch struct {
	mu        sync.Mutex
	cable     demoCable
	ports     map[uint16]uint64 // bytes of data messages of the left host, by source port
	plaintext chan struct{}     // closed at the first packet in the clear
}

func newDemoWatch() *demoWatch {
	return &demoWatch{plaintext: make(chan struct{}), ports: make(map[uint16]uint64)}
}

func (w *demoWatch) take(p netlab.Packet) {
	kind, port := classify(p.Data)
	clear := bytes.Contains(p.Data, []byte(traffic.Marker))
	w.mu.Lock()
	defer w.mu.Unlock()
	switch kind {
	case frameData:
		w.cable.Data++
		if p.Outgoing {
			w.ports[port] += uint64(p.Len)
		}
	case frameHandshake:
		w.cable.Handshake++
	case frameNeighbour:
		w.cable.Neighbour++
	case frameForeign:
		w.cable.Foreign++
		if len(w.cable.Examples) < demoExamples {
			w.cable.Examples = append(w.cable.Examples, fmt.Sprintf("%x", p.Data[:min(len(p.Data), 64)]))
		}
	}
	if clear {
		w.cable.Plaintext++
		if w.cable.Plaintext == 1 {
			close(w.plaintext)
		}
	}
}

func (w *demoWatch) result() demoCable {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.cable
	c.Examples = slices.Clone(c.Examples)
	return c
}

// restart forgets what was seen.
func (w *demoWatch) restart() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cable, w.plaintext = demoCable{}, make(chan struct{})
}

// forgetPorts makes sourcePorts begin anew.
func (w *demoWatch) forgetPorts() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.ports)
}

// sourcePorts is from how many ports the left host sent data: all that had a thousandth of it or more, so that a hello,
// what steers the load, or what was captured late, does not count.
func (w *demoWatch) sourcePorts() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	sum := uint64(0)
	for _, bytes := range w.ports {
		sum += bytes
	}
	for _, bytes := range w.ports {
		if bytes*1000 >= sum {
			n++
		}
	}
	return n
}

// provePlaintextIsSeen sends one datagram over the bare cable: a capture that would not notice it proves nothing.
func (d *demo) provePlaintextIsSeen(ctx context.Context) error {
	rx, err := listenIn(d.right, d.right.cable[0].Addr()) // so that no ICMP error comes back
	if err != nil {
		return err
	}
	defer rx.Close()
	tx, err := listenIn(d.left, d.left.cable[0].Addr())
	if err != nil {
		return err
	}
	defer tx.Close()
	to := rx.LocalAddr().(*net.UDPAddr).AddrPort()
	if _, err := tx.WriteToUDPAddrPort([]byte(strings.Repeat(traffic.Marker, 4)), to); err != nil {
		return fmt.Errorf("testing the capture: %w", err)
	}
	select {
	case <-d.watch.plaintext:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(demoSeeTimeout):
		return errors.New("testing the capture: it did not see a packet sent in the clear")
	}
	d.watch.restart()
	return nil
}

func listenIn(s *demoSide, addr netip.Addr) (conn *net.UDPConn, err error) {
	err = s.host.Do(func() error {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("testing the capture: %w", err)
	}
	return conn, nil
}

type frameKind int

const (
	frameForeign frameKind = iota
	frameData
	frameHandshake
	frameNeighbour
)

const (
	etherLen     = 14
	etherIPv4    = 0x0800
	etherARP     = 0x0806
	etherIPv6    = 0x86dd
	ipUDP        = 17
	ipICMPv6     = 58
	ipHopByHop   = 0
	wgHeaderLen  = 16
	wgMinDataLen = 32
)

// classify says what an Ethernet frame is, of which the beginning is enough, and of a WireGuard message its source port.
func classify(frame []byte) (kind frameKind, port uint16) {
	if len(frame) < etherLen {
		return frameForeign, 0
	}
	packet := frame[etherLen:]
	switch binary.BigEndian.Uint16(frame[12:]) {
	case etherARP:
		return frameNeighbour, 0
	case etherIPv4:
		return classifyIPv4(packet)
	case etherIPv6:
		return classifyIPv6(packet)
	}
	return frameForeign, 0
}

func classifyIPv4(p []byte) (kind frameKind, port uint16) {
	if len(p) < 20 || p[0]>>4 != 4 || p[9] != ipUDP {
		return frameForeign, 0
	}
	headerLen := int(p[0]&15) * 4
	// A fragment says nothing of what it belongs to, and the tunnel's MTU makes none.
	if fragment := binary.BigEndian.Uint16(p[6:]) & 0x3fff; fragment != 0 || headerLen < 20 || len(p) < headerLen {
		return frameForeign, 0
	}
	return classifyUDP(p[headerLen:])
}

func classifyIPv6(p []byte) (kind frameKind, port uint16) {
	if len(p) < 40 || p[0]>>4 != 6 {
		return frameForeign, 0
	}
	next, rest := p[6], p[40:]
	if next == ipHopByHop && len(rest) >= 8 && rest[1] == 0 {
		next, rest = rest[0], rest[8:]
	}
	switch {
	case next == ipUDP:
		return classifyUDP(rest)
	case next == ipICMPv6 && len(rest) > 0 && isNeighbourType(rest[0]):
		return frameNeighbour, 0
	}
	return frameForeign, 0
}

// isNeighbourType knows multicast listener messages (RFC 2710, RFC 3810) and neighbour discovery (RFC 4861).
func isNeighbourType(t byte) bool {
	return t >= 130 && t <= 137 || t == 143
}

// classifyUDP: who spreads sends data from other ports, but to the canonical one; handshakes are between canonical ports.
func classifyUDP(p []byte) (kind frameKind, port uint16) {
	if len(p) < 8+wgHeaderLen {
		return frameForeign, 0
	}
	src, dst := binary.BigEndian.Uint16(p), binary.BigEndian.Uint16(p[2:])
	if dst != demoPort {
		return frameForeign, src
	}
	kind = classifyMessage(p[8:], int(binary.BigEndian.Uint16(p[4:]))-8)
	if kind == frameHandshake && src != demoPort {
		return frameForeign, src
	}
	return kind, src
}

// classifyMessage checks type, reserved bytes and length (WireGuard paper §5.4) of a UDP payload of n bytes.
func classifyMessage(m []byte, n int) frameKind {
	switch t := binary.LittleEndian.Uint32(m); {
	case t == 1 && n == 148, t == 2 && n == 92, t == 3 && n == 64:
		return frameHandshake
	case t == 4 && n >= wgMinDataLen:
		return frameData
	}
	return frameForeign
}
