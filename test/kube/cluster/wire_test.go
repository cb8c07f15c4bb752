// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/test/expect"
)

// tap captures what passes a node's cable.
type tap struct {
	c       *cluster
	capture *netlab.Capture
	pods    []netip.Prefix

	mu        sync.Mutex
	plain     []string // the first few readable packets of pods
	encrypted int      // data messages of WireGuard
}

// snapLen is the length of a header of IPv6 and TCP and some text of the pods. With longer packets, the capture's ring has room for fewer while
// the test gets no CPU.
const snapLen = 192

func (n *node) tap() *tap {
	n.c.Helper()
	t := &tap{c: n.c}
	for _, v := range n.c.ip {
		t.pods = append(t.pods, netip.MustParsePrefix(v.pods))
	}
	var err error
	t.capture, err = n.c.control.host.Capture(netlab.CaptureConfig{Device: n.wire, SnapLen: snapLen, Handle: t.see})
	expect.NoError(n.c, err)
	return t
}

func (t *tap) see(p netlab.Packet) {
	t.mu.Lock()
	defer t.mu.Unlock()
	src, dst, protocol, payload := outer(p.Data)
	switch {
	case t.isPod(src) && t.isPod(dst), bytes.Contains(p.Data, []byte("nobody may read this.")):
		if len(t.plain) < 5 {
			t.plain = append(t.plain, fmt.Sprintf("protocol %d from %s to %s", protocol, src, dst))
		}
	case protocol == unix.IPPROTO_UDP && len(payload) > 8 && payload[8] == 4:
		t.encrypted++
	}
}

func (t *tap) isPod(a netip.Addr) bool {
	return slices.ContainsFunc(t.pods, func(p netip.Prefix) bool { return p.Contains(a) })
}

// outer returns a frame's addresses, protocol and IP payload, or nothing if it is no IP packet.
func outer(b []byte) (src, dst netip.Addr, protocol byte, payload []byte) {
	if len(b) < 14+20 {
		return src, dst, 0, nil
	}
	switch p := b[14:]; {
	case binary.BigEndian.Uint16(b[12:]) == unix.ETH_P_IP:
		return netip.AddrFrom4([4]byte(p[12:16])), netip.AddrFrom4([4]byte(p[16:20])), p[9], p[20:]
	case binary.BigEndian.Uint16(b[12:]) == unix.ETH_P_IPV6 && len(p) >= 40:
		return netip.AddrFrom16([16]byte(p[8:24])), netip.AddrFrom16([16]byte(p[24:40])), p[6], p[40:]
	}
	return src, dst, 0, nil
}

// endReadable ends the capture. It fails the test if nothing between pods was readable.
func (t *tap) endReadable() {
	t.c.Helper()
	expect.NoError(t.c, errors.Join(t.capture.Stop(), t.capture.Close()))
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.plain) == 0 {
		t.c.Error("nothing is readable on the wire: the tunnel has the pods' packets")
	}
}

// end ends the capture. It fails the test if anything between pods was readable, or nothing was encrypted.
func (t *tap) end() {
	t.c.Helper()
	expect.NoError(t.c, t.capture.Stop())
	missed := t.capture.Stats().Missed
	expect.NoError(t.c, t.capture.Close())
	t.mu.Lock()
	defer t.mu.Unlock()
	if missed > 0 || t.encrypted == 0 {
		t.c.Errorf("got %d data messages and %d packets that were not inspected, want some and none", t.encrypted, missed)
	}
	for _, text := range t.plain {
		t.c.Errorf("readable on the wire: %s", text)
	}
}
