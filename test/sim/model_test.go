// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// packetID identifies an inner packet. Its flow is from the host src to the host dst.
type packetID struct {
	src, dst uint8
	flow     uint16
	number   uint32
}

// undeliverable is the flow of packets that must never be delivered.
const undeliverable = 0xffff

const (
	markerLen = 16
	stampLen  = markerLen + 8 // at the start of each payload: the marker and the packet's ID
	headers   = packet.IPv4HeaderLen + packet.UDPHeaderLen
)

// instant is an instant of virtual time at a host.
type instant struct {
	host int
	at   int64
}

func instantAt(host int) instant { return instant{host, time.Now().UnixNano()} }

// model knows each inner packet that was sent, and checks those that arrive.
type model struct {
	report  *report
	ordered bool
	inOrder map[uint16]bool // flows that must arrive in order in any case
	marker  [markerLen]byte
	mu      sync.Mutex
	sent    map[packetID]*sentPacket
	next    map[packetID]uint32 // per flow (the number is 0): the next in order
	flows   map[packetID]uint32 // per flow: the number of packets made
	got     map[int]uint64      // packets delivered, by host
	gotAt   map[instant]int     // packets delivered at an instant
	put     map[int]uint64      // packets sent, by host
	open    map[int]map[int]int // packets that have not arrived, by sender and size
}

type sentPacket struct {
	payload   int
	delivered time.Time // zero: it has not arrived
}

func newModel(s *schedule, r *report) *model {
	m := &model{
		report: r, ordered: s.Network.Ordered && !s.Spread, // packets that wait for a session leave through the listen port
		inOrder: map[uint16]bool{},
		sent:    map[packetID]*sentPacket{}, next: map[packetID]uint32{}, flows: map[packetID]uint32{},
		got: map[int]uint64{}, gotAt: map[instant]int{}, put: map[int]uint64{}, open: map[int]map[int]int{},
	}
	for i, e := range s.Events {
		m.inOrder[uint16(i)] = e.Do == "elephant" && s.Calm
	}
	source := rand.NewPCG(s.Seed, 0x3a)
	binary.LittleEndian.PutUint64(m.marker[:], source.Uint64())
	binary.LittleEndian.PutUint64(m.marker[8:], source.Uint64())
	return m
}

// payload makes the payload of the next packet of a flow, and notes that it is sent.
func (m *model) payload(src, dst int, flow uint16, size int) ([]byte, packetID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	id := packetID{src: uint8(src), dst: uint8(dst), flow: flow}
	number := m.flows[id]
	m.flows[id]++
	id.number = number
	m.put[src]++
	n := max(size-headers, stampLen)
	m.sent[id] = &sentPacket{payload: n}
	if m.open[src] == nil {
		m.open[src] = map[int]int{}
	}
	m.open[src][n]++
	return m.content(id, n), id
}

// content is the payload of a packet.
func (m *model) content(id packetID, n int) []byte {
	b := make([]byte, n)
	copy(b, m.marker[:])
	b[markerLen], b[markerLen+1] = id.src, id.dst
	binary.BigEndian.PutUint16(b[markerLen+2:], id.flow)
	binary.BigEndian.PutUint32(b[markerLen+4:], id.number)
	for i := stampLen; i < n; i++ {
		b[i] = byte(i) ^ byte(id.number)
	}
	return b
}

// packets makes count packets of one flow as one train for a TUN.
func (m *model) packets(src, dst int, number uint16, size, count int) (train []byte, first packetID) {
	ends := devicetest.Ends(byte(src), byte(dst), 1000+number, false)
	payload, first := m.payload(src, dst, number, size)
	if count == 1 {
		return flow.WithVnetHeader(ends.UDP(payload)), first
	}
	n := len(payload)
	for range count - 1 {
		next, _ := m.payload(src, dst, number, size)
		payload = append(payload, next...)
	}
	return ends.UDPTrain(n, payload), first
}

// spoof makes a packet from src to dst with another host's source address.
func (m *model) spoof(src, dst int, from netip.Addr, size int) []byte {
	ends := devicetest.Ends(byte(src), byte(dst), 9, false)
	ends.Src = netip.AddrPortFrom(from, 9)
	payload, _ := m.payload(src, dst, undeliverable, size)
	return flow.WithVnetHeader(ends.UDP(payload))
}

// take checks a train that a host's TUN gets.
func (m *model) take(host int, train []byte) {
	packets, err := flow.Packets(train)
	if err != nil {
		m.report.add("garbage", "host %d: %v", host, err)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range packets {
		if packet.Protocol(p[9]) == packet.ICMP {
			continue // an error of the host's own device
		}
		if kind, err := m.check(host, p); err != nil {
			m.report.add(kind, "host %d: %v", host, err)
		}
	}
}

// check checks a packet that was delivered. The caller holds mu.
func (m *model) check(host int, p []byte) (kind string, err error) {
	if len(p) < headers+stampLen || !bytes.Equal(p[headers:headers+markerLen], m.marker[:]) {
		return "garbage", fmt.Errorf("a packet of %d bytes was delivered that nobody has sent", len(p))
	}
	stamp := p[headers+markerLen:]
	id := packetID{stamp[0], stamp[1], binary.BigEndian.Uint16(stamp[2:]), binary.BigEndian.Uint32(stamp[4:])}
	from, _ := devicetest.Inner(id.src)
	sent := m.sent[id]
	m.got[host]++
	m.gotAt[instantAt(host)]++
	switch {
	case sent == nil || !bytes.Equal(p[headers:], m.content(id, sent.payload)):
		return "garbage", fmt.Errorf("packet %v was delivered with another content than it was sent with", id)
	case int(id.dst) != host:
		return "misrouted", fmt.Errorf("packet %v was delivered", id)
	case id.flow == undeliverable || netip.AddrFrom4([4]byte(p[12:16])) != from:
		return "spoofed", fmt.Errorf("packet %v was delivered from an address outside its peer's allowed IPs", id)
	case !sent.delivered.IsZero():
		return "twice", fmt.Errorf("packet %v was delivered twice", id)
	}
	sent.delivered = time.Now()
	m.open[int(id.src)][sent.payload]--
	return m.checkOrder(id)
}

// checkOrder checks that the packets of a flow arrive in order if the network keeps it.
func (m *model) checkOrder(id packetID) (kind string, err error) {
	of := packetID{id.src, id.dst, id.flow, 0}
	if (m.ordered || m.inOrder[id.flow]) && id.number < m.next[of] {
		return "order", fmt.Errorf("packet %v was delivered after packet %d", id, m.next[of]-1)
	}
	m.next[of] = id.number + 1
	return "", nil
}

// packetCounts returns the number of packets that a host has sent and of those delivered to it. It needs the lock even while all goroutines wait: the
// first packet that a host receives afterwards changes the numbers without having waited for the caller.
func (m *model) packetCounts(host int) (put, got uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.put[host], m.got[host]
}

// least returns the fewest bytes that n packets of a host have that have not arrived.
func (m *model) least(host, n int) (bytes int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, size := range slices.Sorted(maps.Keys(m.open[host])) {
		k := min(n, m.open[host][size])
		bytes += k * size
		n -= k
	}
	return bytes
}

// deliveredAt returns the time at which a packet arrived, zero if it has not.
func (m *model) deliveredAt(id packetID) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	if sent := m.sent[id]; sent != nil {
		return sent.delivered
	}
	return time.Time{}
}
