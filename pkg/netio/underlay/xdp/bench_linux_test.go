// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/udp"
	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
	"github.com/ropewalk/ropewalk/test/cost"
)

// load is what goes over the cable at once: runs of segments datagrams of size bytes.
type load struct{ runs, segments, size int }

var loads = []load{{1, 45, 1452}, {64, 1, 96}}

func (l load) String() string { return fmt.Sprintf("%dx%dx%dB", l.runs, l.segments, l.size) }

func (l load) packets() int { return l.runs * l.segments }

// bench is two ports with a cable between them, and a load for one lane.
type bench struct {
	b        *testing.B
	load     load
	from, at underlay.Lane
	runs     []underlay.Run
	rx       []underlay.Datagrams
}

// ways are the underlays to compare. A veth with an XDP program at either end has no offloads, so that UDP is measured on one
// without any too: that is what it competes with.
var ways = []struct {
	name string
	open func(p *pair) (a, b underlay.Port)
}{
	{"xdp", func(p *pair) (a, b underlay.Port) {
		x, y := p.everything(0, Config{Binding: Binding{Mode: xsk.Copy}}, udp.Config{}), p.everything(1, Config{Binding: Binding{Mode: xsk.Copy}}, udp.Config{})
		p.meet(x, y)
		return x, y
	}},
	{"xdp, checksums in software", func(p *pair) (a, b underlay.Port) {
		c := Config{Binding: Binding{Mode: xsk.Copy}, NoChecksumOffload: true}
		x, y := p.everything(0, c, udp.Config{}), p.everything(1, c, udp.Config{})
		p.meet(x, y)
		return x, y
	}},
	{"udp", func(p *pair) (a, b underlay.Port) {
		return p.openUDP(0, udp.Config{Lanes: p.queue}), p.openUDP(1, udp.Config{Lanes: p.queue})
	}},
	{"udp without GSO and GRO", func(p *pair) (a, b underlay.Port) {
		c := udp.Config{Lanes: p.queue, NoGSO: true, NoGRO: true}
		return p.openUDP(0, c), p.openUDP(1, c)
	}},
}

func eachWay(b *testing.B, run func(b *testing.B, l *bench)) {
	for _, load := range loads {
		for _, w := range ways {
			b.Run(load.String()+"/"+w.name, func(b *testing.B) {
				p := newPair(b, 1)
				from, at := w.open(p)
				l := &bench{b: b, load: load, from: from.Lane(0), at: at.Lane(0), rx: elements(64, 65535)}
				to := p.endpoint(1, at, false)
				for range load.runs {
					l.runs = append(l.runs, underlay.Run{
						To: &to, Parts: [][]byte{message(4, load.segments*load.size)}, SegSize: load.size, Segments: load.segments,
					})
				}
				run(b, l)
			})
		}
	}
}

func (l *bench) send() {
	if l.from.Send(l.runs) != 0 {
		l.b.Fatal(l.runs[0].Err)
	}
}

func (l *bench) receive() {
	for got := 0; got < l.load.packets()*l.load.size; {
		n, err := l.at.Recv(l.rx)
		if err != nil {
			l.b.Fatal(err)
		}
		for i := range n {
			got += l.rx[i].N
		}
	}
}

// BenchmarkSend is sending alone. On a veth that takes frames into the receiving socket.
func BenchmarkSend(b *testing.B) {
	eachWay(b, func(b *testing.B, l *bench) {
		m := cost.OfCalls(b, l.load.packets(), l.load.packets()*l.load.size)
		for b.Loop() {
			l.send()
			m.Outside(l.receive)
		}
		m.Report()
	})
}

// BenchmarkReceive is receiving alone what waits in the socket.
func BenchmarkReceive(b *testing.B) {
	eachWay(b, func(b *testing.B, l *bench) {
		m := cost.OfCalls(b, l.load.packets(), l.load.packets()*l.load.size)
		for b.Loop() {
			m.Outside(l.send)
			l.receive()
		}
		m.Report()
	})
}

// BenchmarkCarry is both, in the CPU time of the process, softirqs that ran on its account included.
func BenchmarkCarry(b *testing.B) {
	eachWay(b, func(b *testing.B, l *bench) {
		m := cost.OfProcess(b, l.load.packets(), l.load.packets()*l.load.size)
		for b.Loop() {
			l.send()
			l.receive()
		}
		m.Report()
	})
}

// BenchmarkGather is parsing frames and putting their payloads into elements.
func BenchmarkGather(b *testing.B) {
	for _, size := range []int{96, 1452} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			var g gatherer
			rx, frame := elements(64, 65535), frameOf(way4, make([]byte, size), 0)
			m := cost.Of(b, 64, 64*size)
			for b.Loop() {
				g.begin(rx, 1)
				for range 64 {
					f, payload, _ := parseFrame(frame, testPort)
					g.add(&f, payload)
				}
			}
			m.Report()
		})
	}
}

// BenchmarkBuild is building frames, with the checksum left to the device and without.
func BenchmarkBuild(b *testing.B) {
	for _, size := range []int{96, 1452} {
		for _, software := range []bool{false, true} {
			b.Run(fmt.Sprintf("%dB/software=%v", size, software), func(b *testing.B) {
				var s runHeader
				headers, frame, payload := newFrameHeader(&way4), make([]byte, 2000), make([]byte, size)
				s.begin(&headers, 1, 2, 0)
				m := cost.Of(b, 1, size)
				for b.Loop() {
					s.writeFrame(frame, payload)
					if software {
						s.complete(frame)
					}
				}
				m.Report()
			})
		}
	}
}

// BenchmarkTunnel is a TCP stream through a tunnel, in the CPU time of the process: both engines, both ends of the stream, and the
// kernel on their account.
func BenchmarkTunnel(b *testing.B) {
	const size, times = 1 << 20, 16
	for _, m := range []tunnelMode{
		{name: "xdp", express: [2]bool{true, true}, mode: xsk.Copy},
		{name: "udp"},
		{name: "udp without GSO and GRO", mode: xsk.Generic},
	} {
		b.Run(m.name, func(b *testing.B) {
			l := newTunnel(b, m, 1)
			l.settle()
			from, to := l.dial(false)
			chunk, sent := make([]byte, size), make(chan error, 1)
			meter := cost.OfProcess(b, size*times/1368, size*times) // segments of TCP with timestamps
			for b.Loop() {
				go func() {
					for range times - 1 {
						_, _ = from.Write(chunk) // an error stays
					}
					_, err := from.Write(chunk)
					sent <- err
				}()
				_, err := io.CopyN(io.Discard, to, size*times)
				must(b, errors.Join(err, <-sent))
			}
			meter.Report()
		})
	}
}
