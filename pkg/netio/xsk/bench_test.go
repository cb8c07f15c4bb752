// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"fmt"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/ropewalk/ropewalk/test/cost"
)

// benchBatch is the number of frames in a batch.
const benchBatch = 64

func benchSizes(b *testing.B, run func(b *testing.B, size int)) {
	for _, size := range []int{64, 1500} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) { run(b, size) })
	}
}

// BenchmarkSend measures sending in copy mode over a veth whose other end drops in XDP.
func BenchmarkSend(b *testing.B) {
	benchSizes(b, func(b *testing.B, size int) {
		l := newLink(b, 1)
		l.ends[1].attach(b, link.XDPDriverMode, &ebpf.ProgramSpec{
			Name: "test_drop", Type: ebpf.XDP, License: "GPL",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}, // XDP_DROP
		})
		s := l.ends[0].open(b, Config{Mode: Copy})
		batch := make([]Desc, benchBatch)
		m := cost.OfCalls(b, benchBatch, benchBatch*size)
		for b.Loop() {
			sendBatch(b, s, batch, size)
		}
		m.Report()
	})
}

// sendBatch sends the frames with whatever they contain.
func sendBatch(b *testing.B, s *Socket, batch []Desc, size int) {
	n := s.Reserve(batch)
	for i := range batch[:n] {
		batch[i].Len = uint32(size)
	}
	if s.Submit(batch[:n]) != len(batch) {
		b.Fatal("the device does not keep up")
	}
	if err := s.WakeTx(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkSendReceive measures both sockets and the kernel between them, over a veth.
func BenchmarkSendReceive(b *testing.B) {
	benchSizes(b, func(b *testing.B, size int) {
		from, to := benchPair(b, size)
		sent, received := make([]Desc, benchBatch), make([]Desc, benchBatch)
		m := cost.OfCalls(b, benchBatch, benchBatch*size)
		for b.Loop() {
			sendBatch(b, from, sent, size)
			receiveBatch(b, from, to, received)
		}
		m.Report()
	})
}

// BenchmarkReceive measures receiving frames that are already in the ring, without the kernel's copy.
func BenchmarkReceive(b *testing.B) {
	benchSizes(b, func(b *testing.B, size int) {
		from, to := benchPair(b, size)
		sent, received := make([]Desc, benchBatch), make([]Desc, benchBatch)
		m := cost.OfCalls(b, benchBatch, benchBatch*size)
		for b.Loop() {
			m.Outside(func() {
				sendBatch(b, from, sent, size)
				awaitFrames(b, from, to, benchBatch)
			})
			receiveBatch(b, from, to, received)
		}
		m.Report()
	})
}

func benchPair(b *testing.B, size int) (from, to *Socket) {
	l := newLink(b, 1)
	l.redirect(b, 1, link.XDPDriverMode, 0)
	from, to = l.ends[0].open(b, Config{Mode: Copy}), l.ends[1].open(b, Config{Mode: Copy})
	all := make([]Desc, DefaultFrames)
	for i := range all[:from.Reserve(all)] {
		l.number(from.Frame(all[i])[:size], 0)
	}
	from.Release(all)
	return from, to
}

func receiveBatch(b *testing.B, from, to *Socket, into []Desc) {
	for total := 0; total < benchBatch; {
		n := to.Receive(into)
		if n == 0 {
			awaitFrames(b, from, to, 1)
		}
		to.Refill(into[:n])
		total += n
	}
}

// awaitFrames waits for frames that another CPU still processes, and replaces frames lost there.
func awaitFrames(b *testing.B, from, to *Socket, n uint32) {
	tries := 0
	await(b, to, "frames", func() bool {
		if tries++; tries%1000 == 0 {
			sendBatch(b, from, make([]Desc, benchBatch), 64)
		}
		return to.rx.ring.pending() >= n
	})
}
