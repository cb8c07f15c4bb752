// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// loopFinder finds endpoints whose route leads into the tunnel, itself or through other tunnels back. Of others it asks their daemons, which may be
// asking this one: never on the goroutine of a lookup, which has locked a peer.
type loopFinder struct {
	dir     uapi.Dir
	done    <-chan struct{}
	changed func() // an answer has changed: look up again

	mu      sync.Mutex
	entered map[tunnelEntry]bool // lookups of destinations behind other tunnels, and whether they loop
	asking  bool
}

// tunnelEntry is where messages enter another tunnel.
type tunnelEntry struct {
	own, link int
	to        netip.Addr
}

// loops implements device.Config.Loops.
func (f *loopFinder) loops(t tun.Device, to *underlay.Endpoint, port uint16, mark uint32) (bool, error) {
	index := indexOf(t)
	if index == 0 {
		return false, nil
	}
	links, err := hostnet.DatagramLinks(netip.AddrPortFrom(to.Src, port), to.Dst, to.Scope, mark)
	if errors.Is(err, hostnet.ErrNoRoute) {
		err = nil
	}
	if err != nil || len(links) == 0 {
		return false, err
	}
	others := slices.DeleteFunc(links, func(l int) bool { return l == index })
	if len(others) == 0 {
		return true, nil
	}
	return hostnet.IsTunnel(others[0]) && f.enters(tunnelEntry{index, others[0], to.Dst.Addr().Unmap()}), nil
}

// enters returns the known answer, and has it looked up.
func (f *loopFinder) enters(e tunnelEntry) (loops bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	loops, known := f.entered[e]
	if !known {
		if f.entered == nil {
			f.entered = map[tunnelEntry]bool{}
		}
		f.entered[e] = false
	}
	if !f.asking {
		f.asking = true
		go f.ask()
	}
	return loops
}

// askPause is the time until a loop through another tunnel is looked up again.
const askPause = 5 * time.Second

// ask asks until no entry loops: the other tunnel's peers may change without a change of routes.
func (f *loopFinder) ask() {
	for f.askOnce() {
		select {
		case <-f.done:
			return
		case <-time.After(askPause):
		}
	}
}

// askOnce looks all entries up, also those that come meanwhile, and reports whether to ask again.
func (f *loopFinder) askOnce() (again bool) {
	for more := true; more; {
		f.mu.Lock()
		entries := slices.Collect(maps.Keys(f.entered))
		f.mu.Unlock()
		answers, follower := map[tunnelEntry]bool{}, f.dir.Follow()
		for _, e := range entries {
			answers[e] = follower.Loops(e.own, e.link, e.to)
		}
		var changed bool
		if changed, again, more = f.note(answers); changed {
			f.changed()
		}
	}
	return again
}

// note stores answers. It forgets entries that do not loop: their next lookup asks again. It reports whether an answer has changed, whether to ask
// again, and whether that is for entries that came meanwhile.
func (f *loopFinder) note(answers map[tunnelEntry]bool) (changed, again, more bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for e := range f.entered {
		_, answered := answers[e]
		more = more || !answered
	}
	for e, loops := range answers {
		changed = changed || f.entered[e] != loops
		f.entered[e] = loops
		if !loops {
			delete(f.entered, e)
		}
	}
	f.asking = len(f.entered) > 0
	return changed, f.asking, more
}
