// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"errors"
	"fmt"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/netio/toobig"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestSmallSendBufferPassesLargestDatagrams sends a datagram in fragments, or a train, through an empty send buffer of the smallest size, and
// one that has room for another packet.
func TestSmallSendBufferPassesLargestDatagrams(t *testing.T) {
	for _, mtu := range []int{1280, 1500, 1700, 9000} {
		for _, v6 := range []bool{false, true} {
			for _, segments := range []int{1, 45} {
				for _, before := range []int{0, 7} { // datagrams
					t.Run(fmt.Sprintf("MTU %d, IPv6 %v, %d segments behind %d", mtu, v6, segments, before), func(t *testing.T) {
						expectLargestPasses(t, mtu, v6, segments, before)
					})
				}
			}
		}
	}
}

func expectLargestPasses(t *testing.T, mtu int, v6 bool, segments, before int) {
	t.Helper()
	slowDevice(t)
	lo, err := netlink.LinkByName("lo")
	expect.NoError(t, err)
	expect.NoError(t, netlink.LinkSetMTU(lo, mtu))
	p := open(t, Config{SendBuffer: minSendBuffer})
	to, lane := behindSlowDevice(v6), p.Lane(0)
	for range before {
		runs := []underlay.Run{small(&to, 0, 0)}
		runs[0].Parts[0] = runs[0].Parts[0][:1200]
		lane.Send(runs)
		expect.NoError(t, runs[0].Err)
	}
	size := segments * 1200
	if segments == 1 {
		size = underlay.MaxDatagramRun
	}
	largest := []underlay.Run{{To: &to, Parts: [][]byte{make([]byte, size)}, SegSize: size / segments, Segments: segments}}
	if lane.Send(largest) != 0 {
		t.Errorf("sending %d bytes: %v", size, largest[0].Err)
	}
}

// portBehindMTU opens a port that sends with Don't Fragment, and returns it with the device to its peers, of the given MTU.
func portBehindMTU(t *testing.T, mtu int) (*Port, netlink.Link) {
	t.Helper()
	slowDevice(t)
	device, err := netlink.LinkByName("slow")
	expect.NoError(t, err)
	expect.NoError(t, netlink.LinkSetMTU(device, mtu))
	p := open(t, Config{TooBig: func(*toobig.Message) {}})
	if !p.Features().DontFragment {
		t.Skip("needs CAP_NET_RAW for ICMP errors")
	}
	return p, device
}

// sendOne sends one datagram of n bytes through lane 0.
func sendOne(p *Port, to underlay.Endpoint, n int, change func(*underlay.Run)) error {
	runs := []underlay.Run{{To: &to, Parts: [][]byte{make([]byte, n)}, SegSize: n, Segments: 1}}
	change(&runs[0])
	p.Lane(0).Send(runs)
	return runs[0].Err
}

// TestRefusedSizeHoldsForDontFragmentAlone sends datagrams that exceed the device's MTU.
func TestRefusedSizeHoldsForDontFragmentAlone(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("IPv6 %v", v6), func(t *testing.T) {
			const size = 1312
			p, _ := portBehindMTU(t, 1300)
			to := behindSlowDevice(v6)
			data, mayFragment := func(*underlay.Run) {}, func(r *underlay.Run) { r.MayFragment = true }
			p.fragmentSockets[0].Store(true) // as while it is being opened
			wantTooBig(t, sendOne(p, to, size, mayFragment))
			wantTooBig(t, sendOne(p, to, size, data))
			expect.NoError(t, p.openOwn(fragmentGroup, 0))
			expect.NoError(t, sendOne(p, to, size, mayFragment))
			expect.NoError(t, p.SetFragments(true))
			expect.NoError(t, sendOne(p, to, size, data))
		})
	}
}

// TestRefusedSizeIsForgottenWhenRoutesChange has a device that becomes larger. Probes do not depend on what was refused before.
func TestRefusedSizeIsForgottenWhenRoutesChange(t *testing.T) {
	const size = 1452
	p, device := portBehindMTU(t, 1400)
	to := behindSlowDevice(false)
	data := func(*underlay.Run) {}
	wantTooBig(t, sendOne(p, to, size, data))
	expect.NoError(t, netlink.LinkSetMTU(device, 1500))
	expect.NoError(t, p.SendRun(&underlay.Run{To: &to, Parts: [][]byte{make([]byte, size)}, SegSize: size, Segments: 1, DontFragment: true}))
	wantTooBig(t, sendOne(p, to, size, data))
	p.RoutesChanged()
	expect.NoError(t, sendOne(p, to, size, data))
}

func wantTooBig(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, underlay.ErrTooBig) {
		t.Fatalf("got %v, want ErrTooBig", err)
	}
}
