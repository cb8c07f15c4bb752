// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// TestRSSTableGivesQueueOfHash checks that the exclusive or of the input bytes' table entries is the index into the indirection
// table, also for IPv4, whose ports are at another offset.
func TestRSSTableGivesQueueOfHash(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 20 {
		r := randomRSS(rng, 1+rng.IntN(64))
		value, err := rssValue(r)
		if err != nil {
			t.Fatal(err)
		}
		word := func(i int) int { return int(binary.NativeEndian.Uint32(value[i*rssWord:])) }
		var a [16]byte
		for i := range a {
			a[i] = byte(rng.Uint32())
		}
		for _, addr := range []netip.Addr{netip.AddrFrom16(a), netip.AddrFrom4([4]byte(a[:]))} {
			src, dst := netip.AddrPortFrom(addr, uint16(rng.Uint32())), netip.AddrPortFrom(addr.Prev(), uint16(rng.Uint32()))
			input := append(src.Addr().AsSlice(), dst.Addr().AsSlice()...)
			input = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(input, src.Port()), dst.Port())
			entry := 0
			for offset, b := range input {
				entry ^= word(offset*256 + int(b))
			}
			want, err := r.Queue(src, dst)
			if got := word(rssInputLen*256 + entry); got != want || err != nil {
				t.Errorf("%v to %v: got queue %d, want %d, error %v", src, dst, got, want, err)
			}
		}
	}
}

// randomRSS returns a configuration with a random key and a random indirection table.
func randomRSS(rng *rand.Rand, queues int) *RSS {
	r := NewRSS(queues)
	for i := range r.Key {
		r.Key[i] = byte(rng.Uint32())
	}
	for i := range r.Indirection {
		r.Indirection[i] = rng.Uint32N(uint32(queues))
	}
	return r
}

func queueOf(t *testing.T, r *RSS, src, dst netip.AddrPort) int {
	t.Helper()
	q, err := r.Queue(src, dst)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func TestRSSRejectsUnsupportedCables(t *testing.T) {
	lab := newLab(t)
	a, b := newHost(t, lab, "a"), newHost(t, lab, "b")
	for name, change := range map[string]func(*RSS){
		"queue 4 of 4":            func(r *RSS) { r.Indirection[7] = 4 },
		"no table":                func(r *RSS) { r.Indirection = nil },
		"a table of three":        func(r *RSS) { r.Indirection = r.Indirection[:3] },
		"a short key":             func(r *RSS) { r.Key = r.Key[:39] },
		"another function":        func(r *RSS) { r.Function = spread.OtherFunction },
		"a transform":             func(r *RSS) { r.Transform = spread.SymmetricXOR },
		"addresses alone of IPv6": func(r *RSS) { r.UDP6 = spread.AddressesOnly },
	} {
		r := NewRSS(4)
		change(r)
		if _, err := lab.Cable(a, b, CableConfig{Queues: 4, RSS: r}); err == nil {
			t.Errorf("%s: got no error", name)
		}
	}
}

// newRSSPair connects two hosts by a cable with a random RSS configuration.
func newRSSPair(t *testing.T, queues int) (a, b *Host, rss *RSS) {
	t.Helper()
	lab := newLab(t)
	a, b = newHost(t, lab, "a"), newHost(t, lab, "b")
	rss = randomRSS(rand.New(rand.NewPCG(1, 2)), queues)
	_, err := lab.Cable(a, b, CableConfig{Queues: queues, AddrsA: addrsA, AddrsB: addrsB, RSS: rss})
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return a, b, rss
}

// queueCaptures counts the packets sent by one end of a cable and those received by the other.
type queueCaptures struct {
	t              *testing.T
	sent, received *Capture
}

func captureQueues(t *testing.T, a, b *Host, queues int) queueCaptures {
	t.Helper()
	w := queueCaptures{t: t}
	for _, end := range []struct {
		host *Host
		into **Capture
	}{{a, &w.sent}, {b, &w.received}} {
		c, err := end.host.Capture(CaptureConfig{Device: "cable0", Queues: queues, Handle: func(Packet) {}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		*end.into = c
	}
	return w
}

// packets returns the counts since the captures began, by queue.
func (c queueCaptures) packets() (sent, came []uint64) {
	c.t.Helper()
	s, err := c.sent.Queues()
	r, err2 := c.received.queues.read(maxQueues, c.received.cfg.Queues)
	if err != nil || err2 != nil || s == nil || r == nil {
		c.t.Fatal("reading the queue counters: ", err, err2)
	}
	for i := range s {
		sent, came = append(sent, s[i].Packets), append(came, r[i].Packets)
	}
	return sent, came
}

// during returns the packets, by queue, that went over the cable while f ran.
func (c queueCaptures) during(f func()) (sent, came []uint64) {
	c.t.Helper()
	s0, c0 := c.packets()
	f()
	sent, came = c.packets()
	for i := range sent {
		sent[i] -= s0[i]
		came[i] -= c0[i]
	}
	return sent, came
}

func TestRSSCableSelectsQueueByHash(t *testing.T) {
	const queues, senders = 8, 40
	a, b, rss := newRSSPair(t, queues)
	w := captureQueues(t, a, b, queues)
	for _, c := range []struct{ from, to string }{
		{"192.168.77.1:0", "192.168.77.2:7000"},
		{"[fd77::1]:0", "[fd77::2]:7000"},
	} {
		rx := listenUDP(t, b, c.to)
		sendAndReceive(t, listenUDP(t, a, c.from), rx, []byte("resolve"), c.to)
		for range senders {
			tx := listenUDP(t, a, c.from)
			queue := queueOf(t, rss, tx.LocalAddr().(*net.UDPAddr).AddrPort(), netip.MustParseAddrPort(c.to))
			sent, came := w.during(func() { sendAndReceive(t, tx, rx, make([]byte, 500), c.to) })
			// Neighbour discovery may send packets on other queues at any time.
			if sent[queue] == 0 || came[queue] == 0 {
				t.Fatalf("from %v: sent by queue %v, received by queue %v; want queue %d", tx.LocalAddr(), sent, came, queue)
			}
		}
	}
}

func TestRSSCableKeepsATrainOnOneQueue(t *testing.T) {
	const queues, segments = 8, 20
	a, b, rss := newRSSPair(t, queues)
	w := captureQueues(t, a, b, queues)
	tx, rx := listenUDP(t, a, "192.168.77.1:0"), listenUDP(t, b, "192.168.77.2:7000")
	sendAndReceive(t, tx, rx, []byte("resolve"), "192.168.77.2:7000")
	raw, _ := tx.SyscallConn()
	var err error
	_ = raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_SEGMENT, 100) })
	if err != nil {
		t.Skipf("no UDP_SEGMENT: %v", err)
	}
	queue := queueOf(t, rss, tx.LocalAddr().(*net.UDPAddr).AddrPort(), netip.MustParseAddrPort("192.168.77.2:7000"))
	sent, _ := w.during(func() { sendAndReceive(t, tx, rx, make([]byte, 100*segments), "192.168.77.2:7000") })
	if sent[queue] < segments {
		t.Errorf("got packets by queue %v, want %d on queue %d", sent, segments, queue)
	}
}

// TestRSSRunsAfterOtherPrograms checks that the queue is selected by the port that a tcx program wrote.
func TestRSSRunsAfterOtherPrograms(t *testing.T) {
	const queues, port = 8, 61234
	a, b, rss := newRSSPair(t, queues)
	setSourcePort(t, a, "cable0", port)
	w := captureQueues(t, a, b, queues)
	tx, rx := listenUDP(t, a, "192.168.77.1:0"), listenUDP(t, b, "192.168.77.2:7000")
	before := queueOf(t, rss, tx.LocalAddr().(*net.UDPAddr).AddrPort(), netip.MustParseAddrPort("192.168.77.2:7000"))
	after := queueOf(t, rss, netip.MustParseAddrPort("192.168.77.1:61234"), netip.MustParseAddrPort("192.168.77.2:7000"))
	for before == after {
		tx = listenUDP(t, a, "192.168.77.1:0")
		before = queueOf(t, rss, tx.LocalAddr().(*net.UDPAddr).AddrPort(), netip.MustParseAddrPort("192.168.77.2:7000"))
	}
	sendAndReceive(t, tx, rx, []byte("resolve"), "192.168.77.2:7000")
	sent, _ := w.during(func() {
		for range 50 {
			sendAndReceive(t, tx, rx, make([]byte, 100), "192.168.77.2:7000")
		}
	})
	if sent[after] < 50 || sent[before] >= 50 {
		t.Errorf("got packets by queue %v, want queue %d of the rewritten port, not queue %d of the original one", sent, after, before)
	}
}

// setSourcePort attaches a tcx egress program that sets the source port of all UDP over IPv4.
func setSourcePort(t *testing.T, h *Host, device string, port uint16) {
	t.Helper()
	value := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, port))
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.R1),
			asm.LoadMem(asm.R1, asm.R6, skbProtocol, asm.Word),
			asm.JNE.Imm(asm.R1, int32(networkOrder(unix.ETH_P_IP)), "next"),
			asm.StoreImm(asm.RFP, -8, int64(value), asm.Half),
			asm.Mov.Reg(asm.R1, asm.R6),
			asm.Mov.Imm(asm.R2, etherLen+20),
			asm.Mov.Reg(asm.R3, asm.RFP),
			asm.Add.Imm(asm.R3, -8),
			asm.Mov.Imm(asm.R4, 2),
			asm.Mov.Imm(asm.R5, 0),
			asm.FnSkbStoreBytes.Call(),
			asm.StoreImm(asm.RFP, -8, 0, asm.Half), // no checksum
			asm.Mov.Reg(asm.R1, asm.R6),
			asm.Mov.Imm(asm.R2, etherLen+26),
			asm.Mov.Reg(asm.R3, asm.RFP),
			asm.Add.Imm(asm.R3, -8),
			asm.Mov.Imm(asm.R4, 2),
			asm.Mov.Imm(asm.R5, 0),
			asm.FnSkbStoreBytes.Call(),
			asm.Mov.Imm(asm.R0, -1).WithSymbol("next"),
			asm.Return(),
		},
	})
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { program.Close() })
	var attached link.Link
	err = h.Do(func() error {
		dev, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		attached, err = link.AttachTCX(link.TCXOptions{Interface: dev.Index, Program: program, Attach: ebpf.AttachTCXEgress})
		return err
	})
	if err != nil {
		t.Skipf("needs tcx (Linux 6.6): %v", err)
	}
	t.Cleanup(func() { _ = attached.Close() })
}

// TestRSSForwardsOtherProtocols checks that packets other than TCP and UDP get a queue and none is lost.
func TestRSSForwardsOtherProtocols(t *testing.T) {
	const queues = 4
	a, b, rss := newRSSPair(t, queues)
	w := captureQueues(t, a, b, queues)
	rx := listenUDP(t, b, "192.168.77.2:7000")
	tx := listenUDP(t, a, "192.168.77.1:0")
	sendAndReceive(t, tx, rx, []byte("resolve"), "192.168.77.2:7000")
	fragments := *rss
	fragments.UDP4 = spread.AddressesOnly
	queue := queueOf(t, &fragments, netip.MustParseAddrPort("192.168.77.1:1"), netip.MustParseAddrPort("192.168.77.2:1"))
	sent, _ := w.during(func() { sendAndReceive(t, tx, rx, make([]byte, 2000), "192.168.77.2:7000") }) // two fragments
	if sent[queue] < 2 {
		t.Errorf("fragments: got packets by queue %v, want two on queue %d", sent, queue)
	}
}
