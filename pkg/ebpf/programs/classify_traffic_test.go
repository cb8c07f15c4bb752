// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"bytes"
	"errors"
	"maps"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/ebpf/hook"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/test/expect"
)

// vethPair is a sending host, and a receiving one with classify.
type vethPair struct {
	*testing.T
	sender, receiver *netlab.Host
	device           string // of the receiver
}

const (
	pierFrom = "198.51.100.2:51821"
	pierTo   = "198.51.100.1:51820"
)

// newVethPair creates two hosts.
func newVethPair(t *testing.T) *vethPair {
	t.Helper()
	loadClassifyFor(t, ClassifyOptions{ListenPort: 1}) // skips without privileges
	lab, err := netlab.New("classify")
	if errors.Is(err, netlab.ErrPrivileges) {
		t.Skip(err)
	}
	expect.NoError(t, err)
	t.Cleanup(func() { expect.NoError(t, lab.Close()) })
	p := &vethPair{T: t}
	p.sender, err = lab.Host("sender")
	expect.NoError(t, err)
	p.receiver, err = lab.Host("receiver")
	expect.NoError(t, err)
	cable, err := lab.Cable(p.sender, p.receiver, netlab.CableConfig{
		Queues: 2,
		AddrsA: []netip.Prefix{netip.MustParsePrefix("198.51.100.2/24")}, AddrsB: []netip.Prefix{netip.MustParsePrefix("198.51.100.1/24")},
	})
	expect.NoError(t, err)
	p.device = cable.DeviceB
	return p
}

// do runs f in the receiver's namespace with its device.
func (p *vethPair) do(f func(device int) error) {
	p.Helper()
	expect.NoError(p.T, p.receiver.Do(func() error {
		dev, err := net.InterfaceByName(p.device)
		if err != nil {
			return err
		}
		return f(dev.Index)
	}))
}

// classify loads and attaches the program, with the receiver's address.
func (p *vethPair) classify(o ClassifyOptions) *Classify {
	p.Helper()
	c := newClassify(p.T, o)
	p.do(func(device int) error { return c.Attach(device) })
	return c
}

// exchange sends messages to the receiver's UDP socket, and fails unless all arrive.
func (p *vethPair) exchange(payloads ...[]byte) {
	p.Helper()
	var in, out *net.UDPConn
	expect.NoError(p.T, p.receiver.Do(func() (err error) {
		in, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(endpoint(pierTo)))
		return err
	}))
	defer in.Close()
	expect.NoError(p.T, p.sender.Do(func() (err error) {
		out, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(endpoint(pierFrom)), net.UDPAddrFromAddrPort(endpoint(pierTo)))
		return err
	}))
	defer out.Close()
	expect.NoError(p.T, in.SetReadDeadline(time.Now().Add(20*time.Second)))
	b := make([]byte, 2000)
	for _, want := range payloads {
		_, err := out.Write(want)
		expect.NoError(p.T, err)
		n, err := in.Read(b)
		if err != nil || !bytes.Equal(b[:n], want) {
			p.Fatalf("% x arrived, %v; want % x", b[:n], err, want)
		}
	}
}

func TestKernelReceivesEverythingWithoutSocket(t *testing.T) {
	p := newVethPair(t)
	c := p.classify(ClassifyOptions{SourceLimit: limitOf(2), TotalLimit: limitOf(5)})
	p.exchange(message(4, 1000), message(4, 32), initiation(), withMAC2(), message(2, 92), message(3, 64), []byte("x"))
	got := countsSince(t, c, ClassifyCounters{})
	if got["no_socket"] != 1 || got["keepalive"] != 1 || got["initiation"] != 2 || got["other"] != 3 || len(got) != 4 {
		t.Errorf("unexpected counters %v", got)
	}
	p.do(func(device int) error {
		if err := newClassify(t, ClassifyOptions{}).Attach(device); !errors.As(err, new(*hook.BusyError)) || !strings.Contains(err.Error(), "(classify) is already attached") {
			t.Errorf("attaching beside another program: got error %v, want %q in it", err, "(classify) is already attached")
		}
		return nil
	})
	expect.NoError(t, c.Detach())
	p.exchange(message(4, 102))
	if after := countsSince(t, c, ClassifyCounters{}); !maps.Equal(after, got) {
		t.Errorf("after the detachment: got counters %v, want %v", after, got)
	}
}

// TestEachQueueUsesItsOwnSocket runs the program on different receive queues.
func TestEachQueueUsesItsOwnSocket(t *testing.T) {
	p := newVethPair(t)
	c := p.classify(ClassifyOptions{})
	fd := addSocket(t, c, 1)
	defer unix.Close(fd)
	in := toHost(false, unchanged)
	for queue, want := range []uint32{xdpPass, xdpRedirect} {
		var verdict uint32
		var refused error
		p.do(func(device int) error {
			verdict, refused = c.program.Run(&ebpf.RunOptions{Data: in, Context: xdpMD{1: uint32(len(in)), 3: uint32(device), 4: uint32(queue)}})
			return nil
		})
		if refused != nil {
			t.Skipf("needs Linux 5.14 to name a queue: %v", refused)
		}
		if verdict != want {
			t.Errorf("queue %d: verdict %d, want %d", queue, verdict, want)
		}
	}
	expect.NoError(t, c.SetSocket(0, fd))
	expect.NoError(t, c.RemoveSocket(1))
	if verdict, _, _ := classify(t, c, in); verdict != xdpRedirect {
		t.Errorf("got verdict %d, want %d", verdict, xdpRedirect)
	}
}

// xdpMD is struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex.
type xdpMD [6]uint32
