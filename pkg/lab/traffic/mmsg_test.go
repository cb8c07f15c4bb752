// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"bytes"
	"net"
	"slices"
	"testing"
	"time"
)

func udpPair(t testing.TB) (tx, rx *net.UDPConn) {
	t.Helper()
	rx, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	tx, err = net.DialUDP("udp", nil, rx.LocalAddr().(*net.UDPAddr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Close(); rx.Close() })
	prepareReceiver(rx)
	_ = rx.SetReadDeadline(time.Now().Add(30 * time.Second))
	return tx, rx
}

func TestBatchesArriveAsSent(t *testing.T) {
	tx, rx := udpPair(t)
	send := [][]byte{[]byte("one"), []byte("second"), []byte("3")}
	out, err := newSendBatch(tx, send)
	if err != nil {
		t.Fatal(err)
	}
	in, err := newRecvBatch(rx, 8, 2048)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := out.send(3); n != 3 || err != nil {
		t.Fatal(n, err)
	}
	var got [][]byte
	for len(got) < 3 {
		n, err := in.recv()
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			p, segSize := in.received(i)
			for piece := range slices.Chunk(p, segSize) {
				got = append(got, bytes.Clone(piece))
			}
		}
	}
	if !slices.EqualFunc(got, send, bytes.Equal) {
		t.Errorf("got %q, want %q", got, send)
	}
}

func TestClosingSocketEndsRecv(t *testing.T) {
	_, rx := udpPair(t)
	d := &datagramReceiver{counters: &counters{}}
	done := make(chan error, 1)
	go func() { done <- d.receive(rx) }()
	rx.Close()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("receive did not return after the socket was closed")
	}
}

func TestTheFastPathsDoNotAllocate(t *testing.T) {
	tx, rx := udpPair(t)
	body := newBody(1)
	const size, count = 200, 8
	buf := build(header{key: 1, size: size}, count, body)
	out, err := newSendBatch(tx, slices.Collect(slices.Chunk(buf, size)))
	if err != nil {
		t.Fatal(err)
	}
	in, err := newRecvBatch(rx, count, recvBufferLen)
	if err != nil {
		t.Fatal(err)
	}
	d := &datagramReceiver{head: header{key: 1}, body: body, counters: &counters{}}
	seq := uint64(0)
	check := func(name string, f func()) {
		t.Helper()
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
	check("a UDP batch", func() {
		stamp(buf, size, seq)
		seq += count
		if _, err := out.send(count); err != nil {
			t.Fatal(err)
		}
		for d.seq.next < seq {
			n, err := in.recv()
			if err != nil {
				t.Fatal(err)
			}
			for i := range n {
				d.countTrain(in.received(i))
			}
			d.publish()
		}
	})
	chunk := build(header{key: 1, size: chunkLen}, 1, body)
	v := newVerifier(1, 0, body)
	check("verifying a TCP chunk", func() {
		setSeq(chunk, v.head.seq)
		if !v.check(chunk) {
			t.Fatal("a valid chunk was rejected")
		}
	})
	if c := d.counters.counts(); c.Corrupt+c.Reordered+c.Duplicated != 0 {
		t.Errorf("got %+v, want nothing corrupt, reordered or duplicated", c)
	}
}

func BenchmarkUDPReceive(b *testing.B) {
	body := newBody(1)
	train := build(header{key: 1, size: DefaultSize}, 40, body)
	d := &datagramReceiver{head: header{key: 1}, body: body, counters: &counters{}}
	b.SetBytes(int64(len(train)))
	seq := uint64(0)
	for b.Loop() {
		stamp(train, DefaultSize, seq)
		seq += 40
		d.countTrain(train, DefaultSize)
	}
}

func BenchmarkTCPVerify(b *testing.B) {
	body := newBody(1)
	chunk := build(header{key: 1, size: chunkLen}, 1, body)
	v := newVerifier(1, 0, body)
	b.SetBytes(chunkLen)
	for b.Loop() {
		setSeq(chunk, v.head.seq)
		if !v.check(chunk) {
			b.Fatal("a valid chunk was rejected")
		}
	}
}
