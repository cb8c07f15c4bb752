// SPDX-License-Identifier: Apache-2.0

package device

import (
	"net/netip"
	"sync"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// loopPort is a port that knows only loops.
type loopPort struct {
	underlay.Port
	loops underlay.Loops
}

func (p *loopPort) SetLoop(to underlay.Destination, loops bool) { p.loops.SetLoop(to, loops) }

func endpointAt(d underlay.Destination) *underlay.Endpoint {
	return &underlay.Endpoint{Dst: netip.AddrPortFrom(d.Addr, 0), Scope: d.Scope}
}

// TestNewPortHearsOfEachLoop attaches ports while peers begin and end to loop.
func TestNewPortHearsOfEachLoop(t *testing.T) {
	old := underlay.Destination{Addr: netip.MustParseAddr("192.0.2.1")}
	next := underlay.Destination{Addr: netip.MustParseAddr("192.0.2.2")}
	for range 20_000 {
		d, port := &Device{}, &loopPort{}
		d.loops.attach(&d.outer.port, &portRef{&loopPort{}})
		d.loops.replace(&d.outer.port, underlay.Destination{}, old)
		var wg sync.WaitGroup
		start := make(chan struct{})
		for _, f := range []func(){
			func() { d.loops.replace(&d.outer.port, old, next) },
			func() { d.loops.attach(&d.outer.port, &portRef{port}) },
		} {
			wg.Go(func() {
				<-start
				f()
			})
		}
		close(start)
		wg.Wait()
		if port.loops.IsLoop(endpointAt(old)) || !port.loops.IsLoop(endpointAt(next)) {
			t.Fatal("the new port and the device disagree about loops")
		}
	}
}

// TestLoopsWithoutPortReachTheNext has one peer that begins to loop without a port, and one that ends.
func TestLoopsWithoutPortReachTheNext(t *testing.T) {
	d, port := &Device{}, &loopPort{}
	ends, begins := underlay.Destination{Addr: netip.MustParseAddr("192.0.2.1")}, underlay.Destination{Addr: netip.MustParseAddr("192.0.2.2")}
	d.loops.attach(&d.outer.port, &portRef{&loopPort{}})
	d.loops.replace(&d.outer.port, underlay.Destination{}, ends)
	d.outer.port.Store(nil)
	d.loops.replace(&d.outer.port, ends, underlay.Destination{})
	d.loops.replace(&d.outer.port, underlay.Destination{}, begins)
	d.loops.attach(&d.outer.port, &portRef{port})
	if port.loops.IsLoop(endpointAt(ends)) || !port.loops.IsLoop(endpointAt(begins)) {
		t.Error("the new port does not know the loops")
	}
}
