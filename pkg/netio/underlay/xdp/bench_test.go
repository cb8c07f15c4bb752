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
	"github.com/ropewalk/ropewalk/test/expect"
)

// load is the traffic of one batch: runs of segments datagrams of size bytes.
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

// underlays are compared. A veth with an XDP program at either end has no offloads. Therefore UDP is measured on a veth
// without a program too: that is its competitor.
var underlays = []struct {
	name string
	open func(p *pair) (a, b underlay.Port)
}{
	{"xdp", func(p *pair) (a, b underlay.Port) {
		x, y := p.openRedirectAll(0, Config{Binding: Binding{Mode: xsk.Copy}}, udp.Config{}), p.openRedirectAll(1, Config{Binding: Binding{Mode: xsk.Copy}}, udp.Config{})
		p.awaitXDPBothWays(x, y)
		return x, y
	}},
	{"xdp, checksums in software", func(p *pair) (a, b underlay.Port) {
		c := Config{Binding: Binding{Mode: xsk.Copy}, NoChecksumOffload: true}
		x, y := p.openRedirectAll(0, c, udp.Config{}), p.openRedirectAll(1, c, udp.Config{})
		p.awaitXDPBothWays(x, y)
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

func eachUnderlay(b *testing.B, run func(b *testing.B, l *bench)) {
	for _, load := range loads {
		for _, w := range underlays {
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

// BenchmarkSend measures sending alone. On a veth this includes the path into the receiving socket.
func BenchmarkSend(b *testing.B) {
	eachUnderlay(b, func(b *testing.B, l *bench) {
		m := cost.OfCalls(b, l.load.packets(), l.load.packets()*l.load.size)
		for b.Loop() {
			l.send()
			m.Outside(l.receive)
		}
		m.Report()
	})
}

// BenchmarkReceive measures receiving alone, of frames that wait in the socket.
func BenchmarkReceive(b *testing.B) {
	eachUnderlay(b, func(b *testing.B, l *bench) {
		m := cost.OfCalls(b, l.load.packets(), l.load.packets()*l.load.size)
		for b.Loop() {
			m.Outside(l.send)
			l.receive()
		}
		m.Report()
	})
}

// BenchmarkCarry measures both, in CPU time of the process. It includes softirqs that run on the process's account.
func BenchmarkCarry(b *testing.B) {
	eachUnderlay(b, func(b *testing.B, l *bench) {
		m := cost.OfProcess(b, l.load.packets(), l.load.packets()*l.load.size)
		for b.Loop() {
			l.send()
			l.receive()
		}
		m.Report()
	})
}

// BenchmarkGather measures parsing frames and putting their payloads into elements.
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

// BenchmarkBuild measures building frames, with and without checksum offload.
func BenchmarkBuild(b *testing.B) {
	for _, size := range []int{96, 1452} {
		for _, software := range []bool{false, true} {
			b.Run(fmt.Sprintf("%dB/software=%v", size, software), func(b *testing.B) {
				var s runHeader
				headers, frame, payload := newFrameHeader(&way4), make([]byte, 2000), make([]byte, size)
				s.begin(&headers, 1, 2, 0, false)
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

// BenchmarkTunnel measures a TCP stream through a tunnel, in CPU time of the process: both engines, both ends of the
// stream, and the kernel's work for them.
func BenchmarkTunnel(b *testing.B) {
	const size, times = 1 << 20, 16
	for _, m := range []tunnelMode{
		{name: "xdp", viaXDP: [2]bool{true, true}, mode: xsk.Copy},
		{name: "udp"},
		{name: "udp without GSO and GRO", noTrains: true},
	} {
		b.Run(m.name, func(b *testing.B) {
			l := newTunnel(b, m, 1)
			l.awaitXDP()
			from, to := l.dial(false)
			chunk, sent := make([]byte, size), make(chan error, 1)
			meter := cost.OfProcess(b, size*times/1368, size*times) // TCP segments with timestamps
			for b.Loop() {
				go func() {
					for range times - 1 {
						_, _ = from.Write(chunk) // the first error stays
					}
					_, err := from.Write(chunk)
					sent <- err
				}()
				_, err := io.CopyN(io.Discard, to, size*times)
				expect.NoError(b, errors.Join(err, <-sent))
			}
			meter.Report()
		})
	}
}
