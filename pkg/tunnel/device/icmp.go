// SPDX-License-Identifier: Apache-2.0

package device

import (
	"encoding/binary"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/toobig"
	"github.com/ropewalk/ropewalk/pkg/protocol/probe"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// icmpErrors takes the ICMP errors that report a path MTU. It is safe for concurrent use.
type icmpErrors struct {
	dev    *Device
	index  endpointIndex
	counts icmpCounters
}

// accept takes an ICMP error. Any goroutine may call it.
func (x *icmpErrors) accept(m *toobig.Message) {
	if p := x.senderOf(m); p != nil && !x.isOwnError(m) {
		x.counts.believed.Add(1)
		storeMin(&p.mtu.reported, uint64(reportedSize(m))<<16|uint64(m.From.Port()))
		p.post(taskProbe)
		return
	}
	x.counts.ignored.Add(1)
}

// storeMin stores the smaller of a and n. Zero stands for nothing.
func storeMin(a *atomic.Uint64, n uint64) {
	for {
		old := a.Load()
		if old != 0 && old <= n || a.CompareAndSwap(old, n) {
			return
		}
	}
}

// isOwnError reports whether this host made an ICMP error: it says nothing about the path. In a routing loop the tunnel and the kernel make many.
func (x *icmpErrors) isOwnError(m *toobig.Message) bool {
	d := x.dev
	return d.cfg.OwnError != nil && d.cfg.OwnError(m)
}

// reportedSize returns the size that passes, according to m. A router that does not say it drops what is larger than the next common MTU
// (RFC 1191, section 5). No path has less than the minimum MTU of its protocol.
func reportedSize(m *toobig.Message) int {
	size, floor := m.MTU, probe.BaseSize
	if m.To.Addr().Is4() {
		floor = probe.FloorIPv4
	}
	if size == 0 {
		size = probe.Plateau(m.Size)
	}
	return max(size, floor)
}

// senderOf returns the peer to which this device sent the packet that m quotes, or nil. m must quote a data message of a present session,
// since an attacker off the path cannot know the receiver index (RFC 8201, section 6). Reports of less than the minimum MTU of IPv6 are
// discarded (section 4).
func (x *icmpErrors) senderOf(m *toobig.Message) *Peer {
	d := x.dev
	if m.MTU >= m.Size || len(m.Payload) < wire.DataHeaderLen || m.To.Addr().Is6() && m.MTU < probe.BaseSize {
		return nil
	}
	if wire.Type(binary.LittleEndian.Uint32(m.Payload)) != wire.TypeData {
		return nil
	}
	receiver, counter := binary.LittleEndian.Uint32(m.Payload[4:]), binary.LittleEndian.Uint64(m.Payload[8:])
	for _, p := range x.index.peers(d, m.To) {
		if p.sessions.hasSent(receiver, counter) {
			return p
		}
	}
	return nil
}

// endpointIndex finds the peers at an endpoint. Anybody can send ICMP errors, so an error must not cost a search of all peers. The index is
// built for the first error, and discarded after indexLifetime: nothing keeps it up to date, and a router repeats its report.
type endpointIndex struct {
	mu    sync.Mutex
	index map[netip.AddrPort][]*Peer // nil for none
}

// indexLifetime is how long an index is used after it was built.
const indexLifetime = time.Second

// peers returns the peers of d that have an endpoint, or had it less than indexLifetime ago.
func (x *endpointIndex) peers(d *Device, endpoint netip.AddrPort) []*Peer {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.index == nil {
		x.index = d.peers.byEndpoint()
		time.AfterFunc(indexLifetime, x.discard)
	}
	return x.index[endpoint]
}

func (x *endpointIndex) discard() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.index = nil
}
