// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"bytes"
	"slices"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// TestImplementationsDoEqualWork checks for each implementation that all packets arrive unchanged, and those of a flow in order.
func TestImplementationsDoEqualWork(t *testing.T) {
	for name, newPath := range map[string]func(testing.TB, implementation, shape) *path{
		"TX": newTX, "RX": newRX, "both": newBoth,
	} {
		for _, s := range shapes {
			s.trains /= 8
			for _, i := range implementations {
				t.Run(name+"/"+i.name, func(t *testing.T) { testPath(t, newPath(t, i, s), i, s) })
			}
		}
	}
}

func testPath(t *testing.T, p *path, i implementation, s shape) {
	var got [][]byte
	p.out.inspector = func(parts [][]byte) { got = append(got, p.packets(i, parts)...) }
	for range 2 {
		p.prepare()
		p.runRound(t)
	}
	p.out.mu.Lock()
	defer p.out.mu.Unlock()
	var sent [flows]int
	for _, packet := range got {
		at := slices.IndexFunc(p.want[:], func(t train) bool { return sameFlow(t.packets[0], packet) })
		if at < 0 {
			t.Fatalf("got a packet of no flow: % x", packet[:min(40, len(packet))])
		}
		want := p.want[at].packets[sent[at]%s.train]
		if !bytes.Equal(packet, want) {
			t.Fatalf("packet %d of flow %d is\n% x, want\n% x", sent[at], at, packet, want)
		}
		sent[at]++
	}
	if len(got) != 2*s.packets() {
		t.Errorf("got %d packets, want %d", len(got), 2*s.packets())
	}
}

// packets returns the packets in one received element.
func (p *path) packets(i implementation, parts [][]byte) (packets [][]byte) {
	element := bytes.Join(parts, nil)
	switch {
	case p.out == p.net.out.sent:
		stride := len(parts[0])
		if len(parts) == 1 && i.trains && len(p.want[0].packets) > 1 {
			stride = len(p.want[0].packets[0]) + 32
		}
		for msg := range slices.Chunk(element, stride) {
			packets = append(packets, p.remote.open(msg))
		}
	case i.vnetHeader:
		packets, _ = flow.Packets(element)
	default:
		packets = [][]byte{element}
	}
	return packets
}

// sameFlow compares addresses and ports.
func sameFlow(a, b []byte) bool { return len(b) > 24 && bytes.Equal(a[12:24], b[12:24]) }
