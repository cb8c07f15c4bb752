// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/test/expect"
)

// classifyRows has a row per branch that does not depend on the configuration. verdict is the outcome of a data message,
// and taken the name of its counter.
func classifyRows(verdict uint32, taken string) []classifyRow {
	v4, v6 := toHost(false, unchanged), toHost(true, unchanged)
	handled := func(name string, v6 bool, change func(*datagram)) classifyRow {
		return classifyRow{name, toHost(v6, change), verdict, taken}
	}
	passed := func(name, counts string, in []byte) classifyRow { return classifyRow{name, in, xdpPass, counts} }
	carried := func(name, counts string, payload []byte) classifyRow {
		return passed(name, counts, toHost(false, withPayload(payload)))
	}
	from := func(name, src string) classifyRow {
		d := data(src, us4)
		if netip.MustParseAddrPort(src).Addr().Is6() {
			d.dst = us6
		}
		return passed(name, "martian", d.bytes())
	}
	return []classifyRow{
		handled("v4", false, unchanged), handled("v6", true, unchanged),
		handled("v4 with options", false, func(d *datagram) { d.options = 10 }),
		handled("v4 with a VLAN tag", false, func(d *datagram) { d.tags = []uint16{0x8100} }),
		handled("v6 with two VLAN tags", true, func(d *datagram) { d.tags = []uint16{0x88a8, 0x8100} }),
		handled("v4 without a checksum", false, func(d *datagram) { d.checksum = none }),
		handled("the smallest with a packet", false, withPayload(message(4, 48))),
		handled("one byte more than a keepalive", false, withPayload(message(4, 33))),
		passed("IP longer than the frame", "too_long", set(set(v4, 14+2, 0, 125), 14+20+4, 0, 105)),
		{"v4 in a padded frame", append(clone(v4), 0, 0, 0), verdict, taken},
		{"v4 with a wrong UDP checksum", set(v4, 14+20+6, 1, 2), verdict, taken},
		{"v4 with a wrong header checksum", set(v4, 14+10, 1, 2), verdict, taken},
		{"v4 with Don't Fragment", set(v4, 14+6, 0x40, 0), verdict, taken},

		passed("three VLAN tags", "", toHost(false, func(d *datagram) { d.tags = []uint16{0x88a8, 0x8100, 0x8100} })),
		passed("ARP", "", set(v4, 12, 8, 6)), passed("TCP", "", set(v4, 14+9, 6)), passed("TCP over v6", "", set(v6, 14+6, 6)),
		passed("an extension header", "", slices.Concat(v6[:14], addIPv6Extensions(v6[14:], 0, packet.HopByHop))),
		passed("another port", "", data(them4, "198.51.100.1:51819").bytes()),
		passed("a port of a lane", "", data(them4, "198.51.100.1:61000").bytes()),
		passed("the port of v6 as a source", "", data(us6, them6).bytes()),
		passed("another's address", "not_local", data(them4, "198.51.100.2:51820").bytes()),
		passed("another's v6 address", "not_local", data(them6, "[2001:db8:1::2]:51820").bytes()),
		passed("all hosts' address", "not_local", data(them4, "255.255.255.255:51820").bytes()),
		passed("our address, mapped into v6", "not_local", data(them6, "[::ffff:198.51.100.1]:51820").bytes()),

		passed("a first fragment", "fragment", set(v4, 14+6, 0x20, 0)), passed("a later fragment", "", set(v4, 14+6, 0, 1)),
		passed("a v6 fragment", "fragment", slices.Concat(v6[:14], addIPv6Extensions(v6[14:], 0, packet.Fragment))),
		passed("UDP longer than IP", "malformed", set(v4, 14+20+4, 0, 105)),
		passed("UDP shorter than IP", "malformed", set(v4, 14+20+4, 0, 103)),
		passed("v6 UDP shorter than IP", "malformed", set(v6, 14+40+4, 0, 103)),
		passed("UDP shorter than itself", "malformed", set(v4, 14+20+4, 0, 7)),
		passed("a jumbogram", "malformed", set(v6, 14+4, 0, 0)),
		passed("IP shorter than its header", "", set(v4, 14, 0x44)),
		passed("IP shorter than UDP", "malformed", set(v4, 14+2, 0, 27)),
		passed("not version 4", "", set(v4, 14, 0x55)), passed("not version 6", "", set(v6, 14, 0x40)),

		carried("a keepalive", "keepalive", message(4, 32)), carried("shorter than a keepalive", "other", message(4, 31)),
		passed("a v6 keepalive", "keepalive", toHost(true, withPayload(message(4, 32)))),
		carried("nothing", "other", nil), carried("seven bytes", "other", message(4, 7)), carried("eight bytes", "other", message(4, 8)),
		carried("a response", "other", message(2, 92)), carried("a cookie", "other", message(3, 64)),
		carried("a reserved byte", "other", set(message(4, 96), 1, 1)), carried("another reserved byte", "other", set(message(4, 96), 3, 1)),
		carried("an unknown type", "other", message(5, 96)), carried("type 0", "other", message(0, 96)),
		carried("an initiation", "initiation", initiation()), carried("an initiation with a cookie", "initiation", withMAC2()),
		passed("a v6 initiation", "initiation", toHost(true, withPayload(initiation()))),
		carried("too long an initiation", "other", message(1, 149)), carried("too short an initiation", "other", message(1, 147)),
		carried("an initiation with a reserved byte", "other", set(initiation(), 2, 1)),

		from("from this network", "0.1.2.3:1"), from("from this host", "127.0.0.1:1"), from("from a group", "224.0.0.1:1"),
		from("from all hosts", "255.255.255.255:1"), from("from a v6 group", "[ff02::1]:1"), from("from the v6 loopback", "[::1]:1"),
		from("from a mapped address", "[::ffff:192.0.2.1]:1"),
	}
}

func TestDataGoesToQueueSocketOtherPacketsToStack(t *testing.T) {
	c := newClassify(t, ClassifyOptions{})
	defer unix.Close(addSocket(t, c, 0))
	checkRows(t, c, classifyRows(xdpRedirect, "socket"))
}

func TestDataWithoutSocketGoesToStack(t *testing.T) {
	c := newClassify(t, ClassifyOptions{})
	checkRows(t, c, classifyRows(xdpPass, "no_socket"))
}

func TestChecksDropNothingWithinLimits(t *testing.T) {
	c := newClassify(t, ClassifyOptions{
		MaxFrame: 1514, CheckIndices: true, SourceLimit: limitOf(1000), TotalLimit: limitOf(1000),
	})
	expect.NoError(t, c.AddIndex(binary.LittleEndian.Uint32(message(4, 96)[4:])))
	defer unix.Close(addSocket(t, c, 0))
	checkRows(t, c, classifyRows(xdpRedirect, "socket"))
}

func TestClosedSocketReturnsQueueToStack(t *testing.T) {
	c := newClassify(t, ClassifyOptions{})
	fd := addSocket(t, c, 0)
	in := toHost(false, unchanged)
	checkRows(t, c, []classifyRow{{"open", in, xdpRedirect, "socket"}})
	expect.NoError(t, unix.Close(fd))
	expect.Eventually(t, "the socket is gone", func() bool { // the kernel frees sockets asynchronously
		verdict, counts, _ := classify(t, c, in)
		return verdict == xdpPass && counts["no_socket"] == 1
	})
	defer unix.Close(addSocket(t, c, 0))
	checkRows(t, c, []classifyRow{{"another", in, xdpRedirect, "socket"}})
	expect.NoError(t, errors.Join(c.RemoveSocket(0), c.RemoveSocket(0)))
	checkRows(t, c, []classifyRow{{"removed", in, xdpPass, "no_socket"}})
	if err := c.SetSocket(ClassifyQueues, fd); err == nil || !strings.Contains(err.Error(), "queue 256") {
		t.Errorf("a queue too many: got error %v, want an error", err)
	}
	if err := c.SetSocket(0, 0); err == nil {
		t.Error("SetSocket accepted a descriptor that is not an AF_XDP socket")
	}
}

func TestTooLongFramesGoToStack(t *testing.T) {
	in := toHost(false, unchanged)
	c := newClassify(t, ClassifyOptions{MaxFrame: len(in)})
	defer unix.Close(addSocket(t, c, 0))
	checkRows(t, c, []classifyRow{
		{"the longest", in, xdpRedirect, "socket"},
		{"one byte more", toHost(false, withPayload(message(4, 97))), xdpPass, "too_long"},
		{"padded by one byte", append(clone(in), 0), xdpPass, "too_long"},
	})
}

// The kernel uses several buffers for a frame longer than a page.
func TestMultiBufferFramesGoToStack(t *testing.T) {
	c := newClassify(t, ClassifyOptions{})
	defer unix.Close(addSocket(t, c, 0))
	verdict, counts, refused := classify(t, c, toHost(false, withPayload(message(4, 9000))))
	if refused {
		t.Skip("needs Linux 5.18 for frames of several buffers")
	}
	if verdict != xdpPass || counts["too_long"] != 1 {
		t.Errorf("got verdict %d, counted %v, want %d and too_long", verdict, counts, xdpPass)
	}
}

func TestUnknownReceiverIndicesFromPeersAreDropped(t *testing.T) {
	c := newClassify(t, ClassifyOptions{CheckIndices: true})
	defer unix.Close(addSocket(t, c, 0))
	expect.NoError(t, c.AddPeerSource(netip.MustParseAddrPort(them4)))
	to := func(index uint32, size int) []byte {
		return toHost(false, withPayload(set(message(4, size), 4, binary.LittleEndian.AppendUint32(nil, index)...)))
	}
	const unknown = "rx_unknown_index"
	expect.NoError(t, c.AddIndex(0x01020304))
	expect.NoError(t, c.AddIndex(0))
	checkRows(t, c, []classifyRow{
		{"known", to(0x01020304, 96), xdpRedirect, "socket"},
		{"zero", to(0, 96), xdpRedirect, "socket"},
		{"in the wrong order", to(0x04030201, 96), xdpDrop, unknown},
		{"unknown", to(7, 96), xdpDrop, unknown},
		{"a keepalive", to(0x01020304, 32), xdpPass, "keepalive"},
		{"an unknown keepalive", to(7, 32), xdpDrop, unknown},
		{"too short a message", to(7, 31), xdpPass, "other"},
		{"an initiation", toHost(false, withPayload(initiation())), xdpPass, "initiation"},
		{"another's", data(them4, "198.51.100.2:51820").bytes(), xdpPass, "not_local"},
	})
	expect.NoError(t, errors.Join(c.RemoveIndex(0), c.RemoveIndex(0)))
	checkRows(t, c, []classifyRow{{"gone", to(0, 96), xdpDrop, unknown}})
}

// TestUnknownReceiverIndicesFromElsewhereGoToStack: the host may masquerade another WireGuard behind it, whose own peer may
// have the address of one of this host's peers.
func TestUnknownReceiverIndicesFromElsewhereGoToStack(t *testing.T) {
	c := newClassify(t, ClassifyOptions{CheckIndices: true})
	defer unix.Close(addSocket(t, c, 0))
	for _, at := range []string{them4, them6} {
		expect.NoError(t, c.AddPeerSource(endpoint(at)))
	}
	const passed = "unknown_index"
	checkRows(t, c, []classifyRow{
		{"another address", data("192.0.2.77:51820", us4).bytes(), xdpPass, passed},
		{"another port of a peer's address", data(netip.AddrPortFrom(endpoint(them4).Addr(), 7).String(), us4).bytes(), xdpPass, passed},
		{"another IPv6 address of the peer's /64", data(netip.AddrPortFrom(endpoint(them6).Addr().Next(), endpoint(them6).Port()).String(), us6).bytes(), xdpPass, passed},
		{"a keepalive", data("192.0.2.77:51820", us4).with(withPayload(message(4, 32))).bytes(), xdpPass, passed},
		{"a peer", toHost(false, unchanged), xdpDrop, "rx_unknown_index"},
		{"an IPv6 peer", toHost(true, unchanged), xdpDrop, "rx_unknown_index"},
	})
	expect.NoError(t, c.RemovePeerSource(endpoint(them4)))
	checkRows(t, c, []classifyRow{{"a removed peer", toHost(false, unchanged), xdpPass, passed}})
}

func TestFullIndexMapReturnsErrFull(t *testing.T) {
	c := newClassify(t, ClassifyOptions{CheckIndices: true})
	for i := range uint32(ClassifyIndices) {
		expect.NoError(t, c.AddIndex(i))
	}
	if err := c.AddIndex(ClassifyIndices); !errors.Is(err, ErrFull) {
		t.Errorf("adding one more: got error %v, want %v", err, ErrFull)
	}
	expect.NoError(t, c.AddIndex(3))
	expect.NoError(t, c.RemoveIndex(3))
	expect.NoError(t, c.AddIndex(ClassifyIndices))
}

func TestOnlyLocalAddressesAreClassified(t *testing.T) {
	c := newClassify(t, ClassifyOptions{})
	v4, v6 := toHost(false, unchanged), toHost(true, unchanged)
	for _, tt := range []struct {
		addresses string
		v4, v6    string
	}{
		{"198.51.100.1 2001:db8:1::1", "no_socket", "no_socket"},
		{"2001:db8:1::1 192.0.2.9", "not_local", "no_socket"},
		{"::ffff:198.51.100.1", "no_socket", "not_local"},
		{"fe80::1%eth0 2001:db8:1::1%eth0", "not_local", "no_socket"},
		{"", "not_local", "not_local"},
	} {
		addresses := []netip.Addr{{}}
		for _, a := range strings.Fields(tt.addresses) {
			addresses = append(addresses, netip.MustParseAddr(a))
		}
		expect.NoError(t, c.SetAddresses(addresses))
		checkRows(t, c, []classifyRow{{tt.addresses, v4, xdpPass, tt.v4}, {tt.addresses, v6, xdpPass, tt.v6}})
	}
}

func TestTooManyAddressesReturnErrFull(t *testing.T) {
	c := newClassify(t, ClassifyOptions{})
	var many []netip.Addr
	for i := range int(c.maps.Addresses.MaxEntries()) {
		many = append(many, netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}))
	}
	expect.NoError(t, c.SetAddresses(many))
	if err := c.SetAddresses(append(many, endpoint(us4).Addr())); !errors.Is(err, ErrFull) {
		t.Errorf("adding one more: got error %v, want %v", err, ErrFull)
	}
	expect.NoError(t, c.SetAddresses(append(many[1:], endpoint(us4).Addr())))
	checkRows(t, c, []classifyRow{{"as many as there is room for", toHost(false, unchanged), xdpPass, "no_socket"}})
	expect.NoError(t, c.SetAddresses([]netip.Addr{endpoint(us4).Addr()}))
	checkRows(t, c, []classifyRow{{"fewer", toHost(false, unchanged), xdpPass, "no_socket"}})
}

// TestRandomPacketsCountAtMostOnce runs packets of all kinds, most of them malformed or truncated. The program must not
// change them, and must count each at most once.
func TestRandomPacketsCountAtMostOnce(t *testing.T) {
	c := newClassify(t, ClassifyOptions{CheckIndices: true, SourceLimit: limitOf(3), TotalLimit: limitOf(50)})
	g := newGenerator(5)
	runs := forEachTruncation(func(in []byte) bool { return oneCount(t, c, in) })
	for range 3000 {
		in := []([]byte){toHost(false, withPayload(message(byte(g.IntN(6)), g.IntN(200)))), initiationFrom("2001:db8::1")}[g.IntN(2)]
		for range 1 + g.IntN(3) {
			in[12+g.IntN(min(len(in)-12, 60))] = byte(g.Uint32())
		}
		oneCount(t, c, in)
	}
	if runs < 400 {
		t.Errorf("%d runs", runs)
	}
}

func oneCount(t *testing.T, c *Classify, in []byte) (refused bool) {
	t.Helper()
	verdict, counts, refused := classify(t, c, in)
	sum, dropped := uint64(0), counts[drop.RXUnknownIndex.String()]+counts[drop.HSXDPSourceLimit.String()]+counts[drop.HSXDPTotalLimit.String()]
	for _, n := range counts {
		sum += n
	}
	if !refused && (sum > 1 || verdict != xdpPass && verdict != xdpDrop || dropped != b2u(verdict == xdpDrop)) {
		t.Errorf("% x: verdict %d, counted %v", in, verdict, counts)
	}
	return refused
}

func b2u(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

func TestClassifyLoadsInEveryConfiguration(t *testing.T) {
	limits := []RateLimit{{}, {Interval: time.Nanosecond, Burst: 1}, {Interval: SourceInterval, Burst: SourceBurst}, {Interval: TotalInterval, Burst: TotalBurst}}
	r := rand.New(rand.NewPCG(1, 2))
	most := uint32(0)
	for i := range 60 {
		o := ClassifyOptions{
			ListenPort: uint16(1 + i/2*r.IntN(2000)), // often port 1, where the verifier takes other paths
			MaxFrame:   r.IntN(2) * 3498, CheckIndices: r.IntN(2) == 0,
			SourceLimit: limits[r.IntN(3)], TotalLimit: limits[r.IntN(4)],
		}
		c, err := LoadClassify(o)
		skipUnprivileged(t, err)
		expect.NoError(t, err)
		info, err := c.program.Info()
		expect.NoError(t, err)
		n, _ := info.VerifiedInstructions()
		most = max(most, n)
		expect.NoError(t, c.Close())
	}
	t.Logf("the verifier processed at most %d instructions (0: before Linux 5.16)", most)
}

func TestClassifyRejectsInvalidOptions(t *testing.T) {
	for _, tt := range []struct {
		want string
		o    ClassifyOptions
	}{
		{"no listen port", ClassifyOptions{}},
		{"invalid maximum frame length -1", ClassifyOptions{ListenPort: 1, MaxFrame: -1}},
		{"invalid rate limit: burst 0", ClassifyOptions{ListenPort: 1, SourceLimit: RateLimit{Interval: 1}}},
		{"one every -1ns", ClassifyOptions{ListenPort: 1, TotalLimit: RateLimit{Interval: -1, Burst: 1}}},
		{"one every 0s", ClassifyOptions{ListenPort: 1, TotalLimit: RateLimit{Burst: 1}}},
		{"one every 24h", ClassifyOptions{ListenPort: 1, TotalLimit: RateLimit{Interval: 24 * time.Hour, Burst: 1 << 40}}},
	} {
		c, err := LoadClassify(tt.o)
		if err == nil {
			expect.NoError(t, c.Close())
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("error %v, want %q", err, tt.want)
		}
	}
}

func TestFailedLoadClassifyLeaksNoDescriptor(t *testing.T) {
	loadClassifyFor(t, ClassifyOptions{ListenPort: 1}) // the first load may open descriptors that stay open
	before := descriptors(t)
	c, err := LoadClassify(ClassifyOptions{ListenPort: 1})
	expect.NoError(t, err)
	expect.NoError(t, c.Close())
	if _, err := LoadClassify(ClassifyOptions{}); err == nil {
		t.Error("loading succeeded")
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func TestClassifyEventsHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for e := range ClassifyEvent(ClassifyEventCount) {
		if e.String() == "" || seen[e.String()] {
			t.Errorf("event %d: got %q, want a name of its own", e, e)
		}
		seen[e.String()] = true
	}
	if e := ClassifyEvent(ClassifyEventCount); e.String() != "unknown" {
		t.Errorf("got %q, want %q", e, "unknown")
	}
	if events, drops := len(classifyCounters{}.Events), len(classifyCounters{}.Drops); events != ClassifyEventCount || drops != drop.Count {
		t.Errorf("C counts %d events and %d drops, Go knows %d and %d", events, drops, ClassifyEventCount, drop.Count)
	}
}
