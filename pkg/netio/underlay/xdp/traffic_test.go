// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/udp"
	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
	"github.com/ropewalk/ropewalk/test/expect"
)

// classify opens a port with programs.Classify.
func (p *pair) classify(end int, c Config, slow udp.Config) *Port {
	p.Helper()
	slow.Lanes = p.queue
	u := p.openUDP(end, slow)
	program, err := programs.LoadClassify(programs.ClassifyOptions{ListenPort: u.LocalPort(), MaxFrame: MaxFrame(c.FrameSize)})
	expect.NoError(p.TB, err)
	p.Cleanup(func() { expect.NoError(p.TB, program.Close()) })
	return p.open(end, u, program, c)
}

// openKernelSocket opens an ordinary UDP socket at one end.
func (p *pair) openKernelSocket(end int) *net.UDPConn {
	p.Helper()
	var conn *net.UDPConn
	expect.NoError(p.TB, p.hosts[end].Do(func() (err error) {
		conn, err = net.ListenUDP("udp", &net.UDPAddr{})
		return err
	}))
	p.Cleanup(func() { conn.Close() })
	expect.NoError(p.TB, conn.SetDeadline(time.Now().Add(deadline)))
	return conn
}

// kernelEndpoint returns the endpoint of such a socket.
func (p *pair) kernelEndpoint(end int, conn *net.UDPConn, ipv6 bool) underlay.Endpoint {
	port := conn.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	if ipv6 {
		return underlay.Endpoint{Dst: netip.AddrPortFrom(addrs6[end].Addr(), port)}
	}
	return underlay.Endpoint{Dst: netip.AddrPortFrom(addrs4[end].Addr(), port)}
}

// message returns bytes that programs.Classify accepts as a message of a type.
func message(kind byte, size int) []byte {
	b := bytes.Repeat([]byte{kind * 17}, max(size, 4))
	binary.LittleEndian.PutUint32(b, uint32(kind))
	return b[:size]
}

// sendOne sends a datagram through a lane.
func sendOne(t testing.TB, l underlay.Lane, to *underlay.Endpoint, payload []byte) {
	t.Helper()
	runs := []underlay.Run{{To: to, Parts: [][]byte{payload}, SegSize: len(payload), Segments: 1}}
	if l.Send(runs) != 0 {
		t.Fatal(runs[0].Err)
	}
}

// recvOne receives a datagram from a lane.
func recvOne(t testing.TB, l underlay.Receiver) ([]byte, underlay.Endpoint) {
	t.Helper()
	rx := []underlay.Datagrams{{Buf: make([]byte, 65535)}}
	got := make(chan error, 1)
	go func() {
		_, err := l.Recv(rx)
		got <- err
	}()
	select {
	case err := <-got:
		expect.NoError(t, err)
	case <-time.After(deadline):
		t.Fatal("nothing arrived")
	}
	return rx[0].Buf[:rx[0].N], rx[0].From
}

// TestKernelAcceptsEveryChecksum: the kernel at the other end drops datagrams with a wrong checksum.
func TestKernelAcceptsEveryChecksum(t *testing.T) {
	for _, software := range []bool{false, true} {
		p := newPair(t, 1)
		a, b := p.classify(0, Config{Binding: Binding{Mode: xsk.Copy}, NoChecksumOffload: software}, udp.Config{}), p.openKernelSocket(1)
		var got [2000]byte
		for _, ipv6 := range []bool{false, true} {
			to := p.kernelEndpoint(1, b, ipv6)
			awaitXDP(t, a, &to)
			for size := 0; size <= 1452; size += 1 + size/40 {
				sent := message(4, size)
				sendOne(t, a.Lane(0), &to, sent)
				for {
					n, from, err := b.ReadFromUDPAddrPort(got[:])
					if err != nil {
						t.Fatalf("%d bytes, IPv6 %v, software %v: got error %v; %+v, want no error", size, ipv6, software, err, a.Status())
					}
					if n == 0 && size > 0 {
						continue // datagrams of awaitXDP
					}
					if !bytes.Equal(got[:n], sent) || from.Port() != a.LocalPort() {
						t.Fatalf("got %d bytes from %v, want %d", n, from, size)
					}
					break
				}
			}
		}
		if s := a.Status().Lanes[0]; s.Slow != 0 || s.Lost != 0 || s.Sent == 0 {
			t.Errorf("got %+v, want Slow 0, Lost 0, Sent other than 0", s)
		}
		checkFrameBalance(t, a)
	}
}

func TestOnlyDataMessagesArriveThroughAFXDP(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			p := newPair(t, 1)
			a, b := p.classify(0, mode.config, mode.udp), p.openKernelSocket(1)
			for _, ipv6 := range []bool{false, true} {
				to := p.endpoint(0, a, ipv6)
				for i, kind := range []byte{4, 1, 4, 2, 4, 3} {
					before := a.Status().Lanes[0]
					sent := message(kind, 148)
					_, err := b.WriteToUDPAddrPort(sent, to.Dst)
					expect.NoError(t, err)
					got, from := recvOne(t, a.Lane(0))
					if want := p.kernelEndpoint(1, b, ipv6); !bytes.Equal(got, sent) || from.Dst != want.Dst || from.Src != to.Dst.Addr() {
						t.Errorf("%d bytes from %+v", len(got), from)
					}
					if n := a.Status().Lanes[0].Received - before.Received; (n == 1) != (kind == 4) {
						t.Errorf("message %d of type %d: %d received through AF_XDP", i, kind, n)
					}
				}
			}
			checkFrameBalance(t, a)
		})
	}
}

// TestTrainsArriveAsTrains sends a run on one lane. Another lane receives it in few elements.
func TestTrainsArriveAsTrains(t *testing.T) {
	const segments, size = 45, 1400
	p := newPair(t, 1)
	a, b := p.classify(0, Config{Binding: Binding{Mode: xsk.Copy}}, udp.Config{}), p.classify(1, Config{Binding: Binding{Mode: xsk.Copy}}, udp.Config{})
	p.awaitXDPBothWays(a, b)
	to := p.endpoint(1, b, false)
	train := bytes.Repeat(message(4, size), segments)
	runs := []underlay.Run{{To: &to, Parts: [][]byte{train}, SegSize: size, Segments: segments}}
	if a.Lane(0).Send(runs) != 0 {
		t.Fatal(runs[0].Err)
	}
	expect.Eventually(t, "the train", func() bool {
		counters, err := b.supervisor.config.Program.(*programs.Classify).Counters()
		expect.NoError(t, err)
		return counters.Events[programs.ClassifySocket] == segments
	})
	rx := elements(64, 65535)
	n, err := b.Lane(0).Recv(rx)
	if err != nil || n != 1 || rx[0].N != len(train) || rx[0].SegSize != size || !bytes.Equal(rx[0].Buf[:rx[0].N], train) {
		t.Errorf("%d elements, the first of %d in %d; %v", n, rx[0].N, rx[0].SegSize, err)
	}
}

// TestOrderHoldsDuringPathChanges sends over two lanes from several sources, while the neighbour entry is deleted and
// restored.
func TestOrderHoldsDuringPathChanges(t *testing.T) {
	const sources, rounds = 3, 400
	p := newPair(t, 2)
	a, b := p.openRedirectAll(0, Config{Binding: Binding{Mode: xsk.Copy}}, udp.Config{NoGSO: true}), p.openRedirectAll(1, Config{Binding: Binding{Mode: xsk.Copy}}, udp.Config{})
	p.awaitXDPBothWays(a, b)
	for i := range sources {
		_, err := a.OpenSource(uint16(61000 + i))
		expect.NoError(t, err)
	}
	to := p.endpoint(1, b, true)
	known := p.neighbour(0, to.Dst.Addr())
	got := make(chan [2]uint32)
	for i := range b.Lanes() {
		go deliver(b.Lane(i), got)
	}
	last, sent := map[uint32]uint32{}, uint32(0)
	both := func() bool {
		return !slices.ContainsFunc(a.Status().Lanes, func(s LaneStatus) bool { return s.Slow == 0 || s.Sent == 0 })
	}
	// On a busy machine the lanes hear of a neighbour's change after many rounds.
	for round, end := 0, time.Now().Add(deadline); round < rounds || !both(); round++ {
		if time.Now().After(end) {
			t.Fatalf("the lanes used one path only: %+v", a.Status().Lanes)
		}
		switch round % 40 {
		case 10: // the UDP socket's turn
			p.setNeighbour(0, known, netlink.NUD_FAILED)
		case 20:
			p.setNeighbour(0, known, netlink.NUD_REACHABLE)
		}
		for lane := range a.Lanes() {
			for source := range sources + 1 {
				sent++
				payload := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, uint32(lane<<8|source)), sent)
				runs := []underlay.Run{{To: &to, Parts: [][]byte{payload}, Segments: 1, Source: source}}
				if a.Lane(lane).Send(runs) != 0 {
					t.Fatal(runs[0].Err)
				}
			}
		}
		for range a.Lanes() * (sources + 1) {
			select {
			case m := <-got:
				if m[1] <= last[m[0]] {
					t.Fatalf("lane %d, source %d: %d after %d", m[0]>>8, m[0]&0xff, m[1], last[m[0]])
				}
				last[m[0]] = m[1]
			case <-time.After(deadline):
				t.Fatal("a datagram is lost")
			}
		}
	}
	checkFrameBalance(t, a)
	checkFrameBalance(t, b)
}

// deliver reports the sender and number of each datagram, until the port is closed.
func deliver(l underlay.Lane, got chan<- [2]uint32) {
	rx := []underlay.Datagrams{{Buf: make([]byte, 65535)}, {Buf: make([]byte, 65535)}, {Buf: make([]byte, 65535)}}
	for {
		n, err := l.Recv(rx)
		if err != nil {
			return
		}
		for i := range rx[:n] {
			for rest := rx[i].Buf[:rx[i].N]; len(rest) >= 8; rest = rest[min(len(rest), rx[i].SegSize):] {
				got <- [2]uint32{binary.BigEndian.Uint32(rest), binary.BigEndian.Uint32(rest[4:])}
			}
		}
	}
}

// neighbour returns an end's neighbour entry for an address.
func (p *pair) neighbour(end int, addr netip.Addr) (n netlink.Neigh) {
	p.Helper()
	expect.NoError(p.TB, p.hosts[end].Do(func() error {
		list, err := netlink.NeighList(0, 0)
		for _, l := range list {
			if a, ok := netip.AddrFromSlice(l.IP); ok && a.Unmap() == addr {
				n = l
			}
		}
		return err
	}))
	return n
}

// setNeighbour sets the state of a neighbour entry.
func (p *pair) setNeighbour(end int, n netlink.Neigh, state int) {
	p.Helper()
	n.State = state
	expect.NoError(p.TB, p.hosts[end].Do(func() error { return netlink.NeighSet(&n) }))
}
