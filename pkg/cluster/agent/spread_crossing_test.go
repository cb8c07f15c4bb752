// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/test/expect"
)

const (
	flowCount = 8
	perRound  = 8 // datagrams per flow
	rounds    = 5 // at least
)

// crossing sends flows from one node to another through their tunnels, and records their packets on the wire.
type crossing struct {
	*tunnels
	from, to *testNode
	senders  []*net.UDPConn
	receiver *net.UDPConn
	sent     [flowCount]uint32
	bytes    int // of data messages, at least
	quick    int // rounds that took less than spread.DefaultGap

	mu     sync.Mutex
	seen   int                    // data messages on the wire
	round  sight                  // of the current round
	ports  map[uint16]bool        // source ports of data messages
	shakes map[netip.AddrPort]int // handshake messages in both directions, by source
}

// sight is the record of one round's data messages on the wire.
type sight struct {
	ports [flowCount]map[uint16]bool // source ports, by flow
	last  map[stretch]uint64         // highest counters
	// Messages that come after a later one of their flow, and those among them from the later one's port.
	overtook, overtookInLane int
}

// stretch is a scope in which WireGuard's counters ascend. Port 0 stands for all ports.
type stretch struct {
	flow    int
	session uint32
	port    uint16
}

func newSight() sight {
	s := sight{last: map[stretch]uint64{}}
	for i := range s.ports {
		s.ports[i] = map[uint16]bool{}
	}
	return s
}

// cross sends rounds of datagrams of each flow. It fails unless all arrive in order, from ports that are spread on the wire and
// gathered for the tunnel.
func (t *tunnels) cross(from, to *testNode) *crossing {
	t.Helper()
	c := &crossing{tunnels: t, from: from, to: to, round: newSight(), ports: map[uint16]bool{}, shakes: map[netip.AddrPort]int{}}
	watched, err := t.router.Capture(netlab.CaptureConfig{Device: to.wire, Handle: c.see})
	expect.NoError(t, err)
	defer watched.Close()
	c.open()
	defer c.close()
	c.connect()
	c.prove()
	received, _ := to.transfer()
	_, sent := from.transfer()
	c.bytes = 0
	c.rounds()
	expect.NoError(t, watched.Stop())
	if missed := watched.Stats().Missed; missed > 0 {
		t.Errorf("%d packets were not inspected", missed)
	}
	nowReceived, _ := to.transfer()
	_, nowSent := from.transfer()
	if nowReceived-received < c.bytes || nowSent-sent < c.bytes {
		t.Errorf("of %d bytes, tunnels count %d sent, %d received", c.bytes, nowSent-sent, nowReceived-received)
	}
	c.check()
	return c
}

// rounds runs at least the minimum of rounds, and at least one quick one: only quick rounds prove the order.
func (c *crossing) rounds() {
	c.Helper()
	until := time.Now().Add(patience)
	for i := 0; i < rounds || c.quick == 0; i++ {
		if c.quick == 0 && time.Now().After(until) {
			c.Fatalf("none of %d rounds took less than %s", i, spread.DefaultGap)
		}
		c.oneRound()
		if at, want := c.to.show("endpoints")[0], c.from.endpoint().String(); at != want {
			c.Errorf("got %s sees %s at %s, want %s", c.to.name, c.from.name, at, want)
		}
	}
}

// open opens new sockets, so that the flows are new.
func (c *crossing) open() {
	c.Helper()
	expect.NoError(c, c.to.host.Do(func() (err error) {
		c.receiver, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(c.to.inner, 0)))
		return err
	}))
	expect.NoError(c, c.from.host.Do(func() error {
		for range flowCount {
			s, err := net.DialUDP("udp4", nil, c.receiver.LocalAddr().(*net.UDPAddr))
			if err != nil {
				return err
			}
			c.senders = append(c.senders, s)
		}
		return nil
	}))
}

func (c *crossing) close() {
	for _, s := range append(c.senders, c.receiver) {
		_ = s.Close()
	}
}

const (
	innerHeaders = 20 + 8
	overhead     = 16 + 16 // of a data message: header and tag
)

// innerLen returns the length of a flow's inner packets, which identifies the flow's messages. It is a multiple of 16, since
// WireGuard pads to that.
func innerLen(flow int) int { return 16 * (4 + flow) }

func (c *crossing) send(flow int) {
	c.Helper()
	b := make([]byte, innerLen(flow)-innerHeaders)
	b[0] = byte(flow)
	binary.BigEndian.PutUint32(b[1:], c.sent[flow])
	_, err := c.senders[flow].Write(b)
	expect.NoError(c, err)
	c.sent[flow]++
	c.bytes += innerLen(flow) + overhead
}

// receive returns one datagram's flow and number, or an error after the deadline.
func (c *crossing) receive(until time.Time) (flow int, number uint32, err error) {
	c.Helper()
	expect.NoError(c, c.receiver.SetReadDeadline(until))
	b := make([]byte, 2048)
	n, err := c.receiver.Read(b)
	if err != nil {
		return 0, 0, err
	}
	flow, number = int(b[0]), binary.BigEndian.Uint32(b[1:])
	if flow >= flowCount || n != innerLen(flow)-innerHeaders || number >= c.sent[flow] {
		c.Fatalf("received %d unexpected bytes", n)
	}
	return flow, number, nil
}

// connect sends until something arrives, which proves a session. All datagrams arrive then, because WireGuard queues them until
// the session exists.
func (c *crossing) connect() {
	c.Helper()
	arrived := uint32(0)
	expect.EventuallyNoError(c, "a session", func() error {
		c.send(0)
		_, _, err := c.receive(time.Now().Add(time.Second))
		if err == nil {
			arrived++
		}
		return err
	})
	for until := time.Now().Add(patience); arrived < c.sent[0]; arrived++ {
		if _, _, err := c.receive(until); err != nil {
			c.Fatalf("of %d datagrams, %d arrived: %v", c.sent[0], arrived, err)
		}
	}
	c.sawAll()
}

// prove sends until messages leave from a source port. Before, the other node has to answer a probe from each, and each probe needs
// 64 messages.
func (c *crossing) prove() {
	c.Helper()
	expect.EventuallyNoError(c, "messages from a source port", func() error {
		time.Sleep(spread.DefaultGap) // the flow may choose its port anew
		for range 8 {
			for range 64 {
				c.send(0)
			}
			for range 64 {
				if _, _, err := c.receive(time.Now().Add(patience)); err != nil {
					return err
				}
			}
		}
		c.sawAll()
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.ports[c.from.endpoint().Port()] && len(c.ports) == 1 {
			return errors.New("all left from the listen port")
		}
		return nil
	})
	time.Sleep(spread.DefaultGap)
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.ports)
}

// oneRound sends datagrams of each flow in turn, and receives them all. A flow changes its port only after a pause of
// spread.DefaultGap. In a shorter round, each flow must therefore use one port and stay in order, on any machine.
func (c *crossing) oneRound() {
	c.Helper()
	c.mu.Lock()
	c.round = newSight()
	c.mu.Unlock()
	next, late, began := c.sent, 0, time.Now()
	for range perRound {
		for flow := range flowCount {
			c.send(flow)
		}
	}
	for missing, until := flowCount*perRound, time.Now().Add(patience); missing > 0; missing-- {
		flow, number, err := c.receive(until)
		if err != nil {
			c.Fatalf("%d datagrams of a round did not arrive: %v", missing, err)
		}
		if number < next[flow] {
			late++
		}
		next[flow] = max(next[flow], number+1)
	}
	took := time.Since(began)
	c.sawAll()
	c.checkRound(took < spread.DefaultGap, late)
}

// checkRound reports the errors of a round.
func (c *crossing) checkRound(quick bool, late int) {
	c.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.round.overtookInLane; n > 0 {
		c.Errorf("%d messages were overtaken by some of their port", n)
	}
	if !quick {
		return
	}
	c.quick++
	if c.round.overtook+late > 0 {
		c.Errorf("reordered within their flow: %d on the wire, %d received", c.round.overtook, late)
	}
	for flow, ports := range c.round.ports {
		if len(ports) != 1 {
			c.Errorf("flow %d never paused but used ports %v", flow, ports)
		}
	}
}

// sawAll waits until all messages were seen on the wire.
func (c *crossing) sawAll() {
	c.Helper()
	sent := 0
	for _, n := range c.sent {
		sent += int(n)
	}
	expect.EventuallyNoError(c, "all messages on the wire", func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.seen != sent {
			return fmt.Errorf("%d of %d", c.seen, sent)
		}
		return nil
	})
}

// check asserts the properties of every crossing.
func (c *crossing) check() {
	c.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for p := range c.ports {
		if !spread.DefaultPorts.Contains(p) {
			c.Errorf("data left from port %d", p)
		}
	}
	c.Logf("%s to %s: %d flows from %d ports, handshakes %v, %d quick rounds", c.from.name, c.to.name, flowCount, len(c.ports), c.shakes, c.quick)
	if len(c.ports) < flowCount/2 {
		c.Errorf("%d flows left from %v", flowCount, c.ports)
	}
	for at := range c.shakes {
		if at != c.from.endpoint() && at != c.to.endpoint() {
			c.Errorf("a handshake came from %s", at)
		}
	}
}

// shook returns nil if a handshake was made from the expected ports.
func (c *crossing) shook() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shakes[c.from.endpoint()] == 0 || c.shakes[c.to.endpoint()] == 0 {
		return errors.New("no handshake was seen")
	}
	return nil
}

// see records an Ethernet frame: WireGuard's messages (paper, section 5.4) in IPv4 without options.
func (c *crossing) see(p netlab.Packet) {
	const outerHeaders = 14 + 20 + 8
	b := p.Data
	if len(b) < outerHeaders+16 || binary.BigEndian.Uint16(b[12:]) != unix.ETH_P_IP || b[14] != 0x45 || b[14+9] != unix.IPPROTO_UDP {
		return
	}
	source := netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[26:30])), binary.BigEndian.Uint16(b[34:]))
	c.mu.Lock()
	defer c.mu.Unlock()
	switch kind := binary.LittleEndian.Uint32(b[outerHeaders:]); {
	case kind >= 1 && kind <= 3:
		c.shakes[source]++
	case kind == 4 && p.Outgoing:
		c.seeData(source.Port(), b[outerHeaders:], p.Len-outerHeaders)
	}
}

func (c *crossing) seeData(from uint16, message []byte, length int) {
	flow := (length-overhead)/16 - 4
	if flow < 0 || flow >= flowCount || length != innerLen(flow)+overhead {
		return // a keepalive
	}
	c.seen++
	c.ports[from], c.round.ports[flow][from] = true, true
	session, counter := binary.LittleEndian.Uint32(message[4:]), binary.LittleEndian.Uint64(message[8:])
	if c.round.overtaken(stretch{flow, session, 0}, counter) {
		c.round.overtook++
	}
	if c.round.overtaken(stretch{flow, session, from}, counter) {
		c.round.overtookInLane++
	}
}

// overtaken reports whether a message comes after a later one.
func (s *sight) overtaken(in stretch, counter uint64) bool {
	last := s.last[in]
	s.last[in] = max(last, counter)
	return counter < last
}
