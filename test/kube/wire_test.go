// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/test/expect"
)

// eavesdropper captures all packets between the nodes.
type eavesdropper struct {
	mu        sync.Mutex
	plain     []string // readable content, the first few
	encrypted int      // data messages of WireGuard
	other     int
	all       []*netlab.Capture
	inspect   func(frame []byte) (why string, encrypted bool)
}

func (l *lab) eavesdrop() *eavesdropper {
	l.Helper()
	return l.eavesdropOn(inspect)
}

func (l *lab) eavesdropOn(inspect func(frame []byte) (why string, encrypted bool)) *eavesdropper {
	l.Helper()
	e := &eavesdropper{inspect: inspect}
	for _, n := range l.nodes {
		c, err := l.fabric.Capture(netlab.CaptureConfig{Device: n.wire, SnapLen: 512, Handle: e.see})
		expect.NoError(l, err)
		e.all = append(e.all, c)
	}
	return e
}

// end ends the capture and returns the first few readable contents.
func (e *eavesdropper) end(l *lab) []string {
	l.Helper()
	for _, c := range e.all {
		expect.NoError(l, c.Stop())
		if missed := c.Stats().Missed; missed > 0 {
			l.Errorf("%d packets were not inspected", missed)
		}
		expect.NoError(l, c.Close())
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.plain
}

// stop ends the capture and fails the test if anything was readable.
func (e *eavesdropper) stop(l *lab) {
	l.Helper()
	for _, text := range e.end(l) {
		l.Error("on the wire, readable: " + text)
	}
}

// seen returns the number of data messages.
func (e *eavesdropper) seen() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.encrypted
}

func (e *eavesdropper) see(p netlab.Packet) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch why, encrypted := e.inspect(p.Data); {
	case encrypted:
		e.encrypted++
	case why != "" && len(e.plain) < 5:
		e.plain = append(e.plain, why)
	default:
		e.other++
	}
}

// inspect returns why a frame must not be there, or that it is a data message.
func inspect(b []byte) (why string, encrypted bool) {
	if bytes.Contains(b, secret[:22]) {
		return "the secret", false
	}
	src, dst, payload, protocol := outer(b)
	for _, pods := range []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix(pods6)} {
		if pods.Contains(src) || pods.Contains(dst) {
			return fmt.Sprintf("a packet from %s to %s", src, dst), false
		}
	}
	return "", protocol == unix.IPPROTO_UDP && len(payload) > 8 && payload[8] == 4
}

// outer returns a frame's addresses and IP payload, or nothing if it is no IP packet or has options.
func outer(b []byte) (src, dst netip.Addr, payload []byte, protocol byte) {
	if len(b) < 14+20 {
		return src, dst, nil, 0
	}
	switch p := b[14:]; {
	case binary.BigEndian.Uint16(b[12:]) == unix.ETH_P_IP:
		return netip.AddrFrom4([4]byte(p[12:16])), netip.AddrFrom4([4]byte(p[16:20])), p[20:], p[9]
	case binary.BigEndian.Uint16(b[12:]) == unix.ETH_P_IPV6 && len(p) >= 40:
		return netip.AddrFrom16([16]byte(p[8:24])), netip.AddrFrom16([16]byte(p[24:40])), p[40:], p[6]
	}
	return src, dst, nil, 0
}
