// SPDX-License-Identifier: Apache-2.0

package demo

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

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/lab/traffic"
)

const (
	// fullPacketOneIn: one in this many packets and trains is searched entirely, the others only at the beginning.
	fullPacketOneIn = 32
	captureTimeout  = 5 * time.Second
	maxExamples     = 3
)

// Cable is the result of the capture. A train counts as one packet.
type Cable struct {
	Data      uint64   `json:"data"`      // WireGuard data messages
	Handshake uint64   `json:"handshake"` // WireGuard initiations, responses and cookie replies
	Refused   uint64   `json:"refused"`   // ICMP errors: a handshake arrived before the other end listened, and was repeated
	Neighbour uint64   `json:"neighbour"` // ARP, IPv6 neighbour discovery and multicast listener reports
	Foreign   uint64   `json:"foreign"`   // anything else; must be 0
	Plaintext uint64   `json:"plaintext"` // packets that contain the payload's marker; must be 0
	Missed    uint64   `json:"missed"`    // packets that the capture lost
	Examples  []string `json:"examples,omitempty"`
}

func (c Cable) seen() uint64 { return c.Data + c.Handshake + c.Refused + c.Neighbour + c.Foreign }

// frameCounter classifies and counts every frame on the cable.
type frameCounter struct {
	mu        sync.Mutex
	cable     Cable
	ports     map[uint16]uint64 // bytes of data messages of the left host, by source port
	plaintext chan struct{}     // closed at the first packet with plaintext
}

func newFrameCounter() *frameCounter {
	return &frameCounter{plaintext: make(chan struct{}), ports: make(map[uint16]uint64)}
}

func (w *frameCounter) count(p netlab.Packet) {
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
	case frameRefused:
		w.cable.Refused++
	case frameNeighbour:
		w.cable.Neighbour++
	case frameForeign:
		w.cable.Foreign++
		if len(w.cable.Examples) < maxExamples {
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

func (w *frameCounter) result() Cable {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.cable
	c.Examples = slices.Clone(c.Examples)
	return c
}

// reset resets all counts.
func (w *frameCounter) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cable, w.plaintext = Cable{}, make(chan struct{})
}

// resetPorts resets the counts by source port.
func (w *frameCounter) resetPorts() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.ports)
}

// sourcePorts returns the number of ports from which the left host sent at least a thousandth of its data. It thus ignores hellos,
// and packets that were captured late.
func (w *frameCounter) sourcePorts() (n int) {
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

// testPlaintextDetection sends one plaintext datagram over the cable, to check that the capture detects plaintext.
func (d *demo) testPlaintextDetection(ctx context.Context) error {
	rx, err := listenIn(d.right, d.right.Cable[0].Addr()) // so that the host sends no ICMP error
	if err != nil {
		return err
	}
	defer rx.Close()
	tx, err := listenIn(d.left, d.left.Cable[0].Addr())
	if err != nil {
		return err
	}
	defer tx.Close()
	to := rx.LocalAddr().(*net.UDPAddr).AddrPort()
	if _, err := tx.WriteToUDPAddrPort([]byte(strings.Repeat(traffic.Marker, 4)), to); err != nil {
		return fmt.Errorf("testing the capture: %w", err)
	}
	select {
	case <-d.frames.plaintext:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(captureTimeout):
		return errors.New("testing the capture: a packet sent without encryption was not captured")
	}
	d.frames.reset()
	return nil
}

func listenIn(s *Side, addr netip.Addr) (conn *net.UDPConn, err error) {
	err = s.Host.Do(func() error {
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
	frameRefused
	frameNeighbour
)

const (
	etherLen     = 14
	etherIPv4    = 0x0800
	etherARP     = 0x0806
	etherIPv6    = 0x86dd
	ipICMP       = 1
	ipUDP        = 17
	ipICMPv6     = 58
	ipHopByHop   = 0
	wgHeaderLen  = 16
	wgMinDataLen = 32

	wgInitiationLen  = 148
	wgResponseLen    = 92
	wgCookieReplyLen = 64
)

// classify returns the kind of an Ethernet frame and, for a WireGuard message, its source port. The frame may be truncated.
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
	protocol, rest := ipv4Payload(p)
	switch protocol {
	case ipUDP:
		return classifyUDP(rest)
	case ipICMP:
		return classifyICMP(rest), 0
	}
	return frameForeign, 0
}

// ipv4Payload returns a packet's protocol and payload, or zero if it is malformed or a fragment. With the tunnel's MTU there are
// no fragments.
func ipv4Payload(p []byte) (protocol byte, rest []byte) {
	if len(p) < 20 || p[0]>>4 != 4 {
		return 0, nil
	}
	headerLen := int(p[0]&15) * 4
	if fragment := binary.BigEndian.Uint16(p[6:]) & 0x3fff; fragment != 0 || headerLen < 20 || len(p) < headerLen {
		return 0, nil
	}
	return p[9], p[headerLen:]
}

// classifyICMP recognizes port-unreachable errors for handshakes (RFC 792), which a host sends while its interface is up and its
// port is not open yet. The error quotes addresses, ports and length, unless the capture has truncated it.
func classifyICMP(p []byte) frameKind {
	if len(p) < 8 || p[0] != 3 || p[1] != 3 {
		return frameForeign
	}
	protocol, quoted := ipv4Payload(p[8:])
	if protocol != ipUDP || len(quoted) < 8 || binary.BigEndian.Uint16(quoted[2:]) != tunnelPort {
		return frameForeign
	}
	if n := int(binary.BigEndian.Uint16(quoted[4:])) - 8; n != wgInitiationLen && n != wgResponseLen {
		return frameForeign
	}
	return frameRefused
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

// isNeighbourType reports whether the type is a multicast listener message (RFC 2710, RFC 3810) or neighbour discovery (RFC 4861).
func isNeighbourType(t byte) bool {
	return t >= 130 && t <= 137 || t == 143
}

// classifyUDP accepts data from any source port (spread) to the listen port, and handshakes between listen ports.
func classifyUDP(p []byte) (kind frameKind, port uint16) {
	if len(p) < 8+wgHeaderLen {
		return frameForeign, 0
	}
	src, dst := binary.BigEndian.Uint16(p), binary.BigEndian.Uint16(p[2:])
	if dst != tunnelPort {
		return frameForeign, src
	}
	kind = classifyMessage(p[8:], int(binary.BigEndian.Uint16(p[4:]))-8)
	if kind == frameHandshake && src != tunnelPort {
		return frameForeign, src
	}
	return kind, src
}

// classifyMessage checks type, reserved bytes and length (WireGuard paper §5.4) of a UDP payload of n bytes.
func classifyMessage(m []byte, n int) frameKind {
	switch t := binary.LittleEndian.Uint32(m); {
	case t == 1 && n == wgInitiationLen, t == 2 && n == wgResponseLen, t == 3 && n == wgCookieReplyLen:
		return frameHandshake
	case t == 4 && n >= wgMinDataLen:
		return frameData
	}
	return frameForeign
}
