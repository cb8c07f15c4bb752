// SPDX-License-Identifier: Apache-2.0

package tun_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/test/expect"
)

// constantFilter loads a socket filter that returns value.
func constantFilter(t *testing.T, value uint32) *ebpf.Program {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:         ebpf.SocketFilter,
		License:      "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.LoadImm(asm.R0, int64(value), asm.DWord), asm.Return()},
	})
	if errors.Is(err, os.ErrPermission) || errors.Is(err, ebpf.ErrNotSupported) {
		t.Skipf("needs CAP_BPF: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// steer sets a filter that returns value, and closes it: the device holds a reference.
func steer(t *testing.T, d tun.Device, value uint32) {
	t.Helper()
	p := constantFilter(t, value)
	defer p.Close()
	if err := d.(tun.Steerer).SetSteering(p.FD()); err != nil {
		t.Fatal(err)
	}
}

// arrivals reads all queues of d, until it is closed.
type arrivals chan arrival

type arrival struct {
	queue  int
	packet []byte
}

func watchQueues(t *testing.T, d tun.Device) arrivals {
	a := make(arrivals, 64)
	for i, q := range d.Queues() {
		go func() {
			bufs, sizes := [][]byte{make([]byte, tun.MaxTrain)}, []int{0}
			for {
				if _, err := q.Read(bufs, sizes); err != nil {
					return
				}
				select {
				case a <- arrival{i, bytes.Clone(bufs[0][offload.VnetHdrLen:sizes[0]])}:
				case <-t.Context().Done():
					return
				}
			}
		}()
	}
	return a
}

// queueOf waits for the packet and returns where it came.
func (a arrivals) queueOf(t *testing.T, packet []byte) int {
	t.Helper()
	for deadline := time.After(20 * time.Second); ; {
		select {
		case got := <-a:
			if bytes.Equal(got.packet, packet) {
				return got.queue
			}
		case <-deadline:
			t.Fatalf("% x never arrived", packet)
		}
	}
}

// datagram returns a UDP packet without payload between the host and an address behind the interface.
func datagram(outward bool) []byte {
	p := make([]byte, 28)
	p[0], p[3], p[5], p[8], p[9] = 0x45, 28, 1, 64, 17
	copy(p[12:], []byte{10, 99, 0, 1, 10, 99, 0, 2, 4, 1, 4, 2, 0, 8})
	if !outward {
		copy(p[12:], []byte{10, 99, 0, 2, 10, 99, 0, 1, 4, 2, 4, 1})
	}
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(p[i:]))
	}
	binary.BigEndian.PutUint16(p[10:], ^uint16(sum+sum>>16))
	return p
}

func TestSteeringProgramSelectsQueue(t *testing.T) {
	enterNamespace(t)
	const queues = 3
	d := open(t, tun.Config{Name: "rw0", Queues: queues})
	h := newHost(t, d)
	a := watchQueues(t, d)
	packet := datagram(true)
	for _, value := range []uint32{0, 1, 2, 3, 65535, 65536, 65537, 1<<32 - 1} {
		steer(t, d, value)
		if !d.Features().Steer {
			t.Error("Features report no program")
		}
		h.inject(packet)
		if got, want := a.queueOf(t, packet), int(value%65536)%queues; got != want {
			t.Errorf("the program returned %d: queue %d, want %d", value, got, want)
		}
	}
}

func TestWithoutSteeringFlowFollowsReplyQueue(t *testing.T) {
	enterNamespace(t)
	d := open(t, tun.Config{Name: "rw0", Queues: 3})
	h := newHost(t, d)
	a := watchQueues(t, d)
	steer(t, d, 1)
	if err := d.(tun.Steerer).SetSteering(-1); err != nil {
		t.Fatal(err)
	}
	if d.Features().Steer {
		t.Error("Features report a program")
	}
	packet, answer := datagram(true), append(make([]byte, offload.VnetHdrLen), datagram(false)...)
	for i, q := range d.Queues() {
		// The driver forgets a flow after three seconds, which may pass on a busy machine.
		expect.Eventually(t, fmt.Sprintf("the flow is on queue %d, as its answer was", i), func() bool {
			expect.NoError(t, q.Write([][]byte{answer}))
			h.inject(packet)
			return a.queueOf(t, packet) == i
		})
	}
}

func TestSteeringRejectsNonProgramFD(t *testing.T) {
	enterNamespace(t)
	d := open(t, tun.Config{Name: "rw0", Queues: 2})
	steer(t, d, 1)
	if err := d.(tun.Steerer).SetSteering(0); err == nil {
		t.Error("standard input was accepted")
	}
	if !d.Features().Steer {
		t.Error("a rejected program detached the old one")
	}
}

func TestSteeringFailsOnClosedOrDeletedDevice(t *testing.T) {
	enterNamespace(t)
	p := constantFilter(t, 0)
	defer p.Close()
	closed := open(t, tun.Config{Name: "rw0"})
	closed.Close()
	deleted := open(t, tun.Config{Name: "rw1"})
	link, err := netlink.LinkByName("rw1")
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, d := range map[string]tun.Device{"closed": closed, "deleted": deleted} {
		if err := d.(tun.Steerer).SetSteering(p.FD()); !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s: got error %v, want %v", name, err, os.ErrClosed)
		}
	}
}
