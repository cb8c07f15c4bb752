// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"testing"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/test/cost"
)

// batch is the traffic of one batch over the loopback: runs of segments datagrams of size bytes.
type batch struct {
	name                 string
	config               Config
	sources              int // number of sources that send in equal shares; 0 is the listen port alone
	runs, segments, size int
}

var singly = Config{NoGSO: true, NoGRO: true}

var batches = []batch{
	{"train of 45x1452B", Config{}, 0, 1, 45, 1452},
	{"train of 45x1452B without GSO and GRO", singly, 0, 1, 45, 1452},
	{"64 single 96B", Config{}, 0, 64, 1, 96},
	{"64 single 96B without GSO and GRO", singly, 0, 64, 1, 96},
	{"64 single 96B from 16 sources", Config{}, 16, 64, 1, 96},
}

func (s batch) packets() int { return s.runs * s.segments }

func (s batch) bytes() int { return s.packets() * s.size }

// BenchmarkSend measures sending alone. On the loopback this includes the path into the receiving socket.
func BenchmarkSend(b *testing.B) {
	for _, s := range batches {
		b.Run(s.name, func(b *testing.B) {
			l := newLoop(b, s)
			m := cost.OfCalls(b, s.packets(), s.bytes())
			for b.Loop() {
				l.send()
				m.Outside(l.receive)
			}
			m.Report()
		})
	}
}

// BenchmarkReceive measures receiving alone, of datagrams that wait in the socket.
func BenchmarkReceive(b *testing.B) {
	for _, s := range batches {
		b.Run(s.name, func(b *testing.B) {
			l := newLoop(b, s)
			m := cost.OfCalls(b, s.packets(), s.bytes())
			for b.Loop() {
				m.Outside(l.send)
				l.receive()
			}
			m.Report()
		})
	}
}

// loop is two ports on the loopback, and the traffic from one to the other.
type loop struct {
	b        *testing.B
	shape    batch
	from, at underlay.Lane
	runs     []underlay.Run
	rx       []underlay.Datagrams
}

func newLoop(b *testing.B, s batch) *loop {
	enterNamespace(b)
	from, at := open(b, s.config), open(b, s.config)
	for range s.sources {
		openSource(b, from)
	}
	to := loopback(at, false)
	l := &loop{b: b, shape: s, from: from.Lane(0), at: at.Lane(0), rx: make([]underlay.Datagrams, 64)}
	for i := range s.runs {
		l.runs = append(l.runs, underlay.Run{
			To: &to, Parts: [][]byte{make([]byte, s.segments*s.size)}, SegSize: s.size, Segments: s.segments,
		})
		if s.sources > 0 {
			l.runs[i].Source = 1 + i*s.sources/s.runs
		}
	}
	for i := range l.rx {
		l.rx[i].Buf = make([]byte, 65535)
	}
	return l
}

func (l *loop) send() {
	if l.from.Send(l.runs) != 0 {
		l.b.Fatal(l.runs[0].Err)
	}
}

func (l *loop) receive() {
	for got := 0; got < l.shape.bytes(); {
		n, err := l.at.Recv(l.rx)
		if err != nil {
			l.b.Fatal(err)
		}
		for i := range n {
			got += l.rx[i].N
		}
	}
}
