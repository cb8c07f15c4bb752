// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"bytes"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/test/expect"
	"github.com/ropewalk/ropewalk/test/namespace"
)

// rig is a TUN with Steer in its own network namespace, and a host that sends into it.
type rig struct {
	t        *testing.T
	device   tun.Steerer
	queues   []tun.Queue
	index    int
	socket   int
	arrivals chan arrival
}

type arrival struct {
	queue int
	ip    []byte
}

// newRig moves the test's goroutine into a new network namespace. The thread ends with the goroutine.
func newRig(t *testing.T, queues int) *rig {
	t.Helper()
	s := load(t)
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skipf("needs a TUN driver: %v", err)
	}
	namespace.Enter(t)
	d, err := tun.Open(tun.Config{Name: "rw0", Queues: queues})
	r := &rig{t: t, socket: -1, arrivals: make(chan arrival, 64)}
	expect.NoError(t, err)
	t.Cleanup(func() { _ = d.Close() })
	r.device = d.(tun.Steerer)
	expect.NoError(t, r.device.SetSteering(s.FD()))
	link, err := netlink.LinkByName("rw0")
	expect.NoError(t, err)
	expect.NoError(t, netlink.LinkSetUp(link))
	r.queues, r.index = d.Queues(), link.Attrs().Index
	r.socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	expect.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(r.socket) })
	for i, q := range r.queues {
		go r.readQueue(i, q)
	}
	return r
}

// readQueue reports the packets that arrive on a queue, until the device is closed.
func (r *rig) readQueue(i int, q tun.Queue) {
	bufs, sizes := [][]byte{make([]byte, tun.MaxTrain)}, []int{0}
	for {
		if _, err := q.Read(bufs, sizes); err != nil {
			return
		}
		select {
		case r.arrivals <- arrival{i, bytes.Clone(bufs[0][offload.VnetHdrLen:sizes[0]])}:
		case <-r.t.Context().Done():
			return
		}
	}
}

// queueOf sends a packet into the interface and returns the queue on which it arrives.
func (r *rig) queueOf(ip []byte) int {
	r.t.Helper()
	ethertype := uint16(packet.EtherTypeIPv4)
	if packet.VersionOf(ip) == packet.Version6 {
		ethertype = uint16(packet.EtherTypeIPv6)
	}
	to := &unix.SockaddrLinklayer{Protocol: ethertype<<8 | ethertype>>8, Ifindex: r.index}
	expect.NoError(r.t, unix.Sendto(r.socket, ip, 0, to))
	for deadline := time.After(20 * time.Second); ; {
		select {
		case a := <-r.arrivals:
			if bytes.Equal(a.ip, ip) { // skip packets that the host sends by itself
				return a.queue
			}
		case <-deadline:
			r.t.Fatalf("% x never arrived", ip)
		}
	}
}

// flows returns one packet of each of many flows, of both IP versions.
func flows() (out [][]byte) {
	for i := range 40 {
		out = append(out, set(ipv4(packet.UDP, 60), 20, byte(i)), set(ipv6(packet.TCP, 60), 40, byte(i)))
	}
	return append(out, ipv4(packet.ICMP, 30), set(ipv4(packet.UDP, 60), 6, 0, 7), addIPv4Options(ipv4(packet.TCP, 40), 3),
		addIPv6Extensions(ipv6(packet.UDP, 60), 1, packet.DestOptions), addIPv6Extensions(ipv6(packet.UDP, 60), 0, packet.Fragment),
		set(ipv4(packet.UDP, 60), 2, 0, 0), set(ipv4(packet.UDP, 60), 0, 0x15))
}

func TestSteerKeepsBothDirectionsOnOneQueue(t *testing.T) {
	for _, queues := range []int{1, 2, 3, 4} { // with three queues the number of used hash bits matters
		t.Run(fmt.Sprint(queues), func(t *testing.T) {
			r := newRig(t, queues)
			used := map[int]bool{}
			for _, ip := range flows() {
				want := steerQueue(packet.FlowHash(ip), queues)
				used[want] = true
				answer := reverse(ip)
				if packet.FlowHash(answer) != packet.FlowHash(ip) {
					answer = ip // reverse does not support options
				}
				for i, q := range r.queues {
					if got := r.queueOf(ip); got != want {
						t.Fatalf("% x: queue %d, want %d", ip, got, want)
					}
					if got := r.queueOf(answer); got != want {
						t.Fatalf("the answer to % x: queue %d, want %d", ip, got, want)
					}
					// Without steering this would move the flow to queue i. The kernel rejects malformed packets.
					if err := q.Write([][]byte{make([]byte, offload.VnetHdrLen), answer}); err != nil && packet.FlowHash(ip) != 0 {
						t.Fatalf("writing to queue %d: %v", i, err)
					}
				}
			}
			if len(used) != queues {
				t.Errorf("%d of %d queues are used", len(used), queues)
			}
		})
	}
}

func TestRemovedSteeringNoLongerSelectsQueue(t *testing.T) {
	r := newRig(t, 2)
	ip := ipv4(packet.UDP, 60)
	steered := steerQueue(packet.FlowHash(ip), 2)
	if got := r.queueOf(ip); got != steered {
		t.Fatalf("queue %d, want %d", got, steered)
	}
	expect.NoError(t, r.device.SetSteering(-1))
	other := 1 - steered
	expect.Eventually(t, "the flow follows its answers", func() bool { // the driver's flow entry expires after three seconds
		expect.NoError(t, r.queues[other].Write([][]byte{make([]byte, offload.VnetHdrLen), reverse(ip)}))
		return r.queueOf(ip) == other
	})
}
