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
	entered map[tunnelEntry]loopAnswer // lookups of destinations behind other tunnels
	asking  bool
}

// tunnelEntry is where messages enter another tunnel.
type tunnelEntry struct {
	own, link int
	to        netip.Addr
}

// loopAnswer is the knowledge of a tunnelEntry.
type loopAnswer struct {
	loops   bool
	unknown int // how many lookups in succession have failed since
}

// lookup is the result of one, unknown after an error.
type lookup struct {
	loops bool
	err   error
}

// maxUnknown bounds how long an unknown answer is looked up again and a loop is believed in: a minute. A daemon that restarts has a new interface or
// takes its tunnel over within seconds.
const maxUnknown = 12

// next returns the answer after another lookup, and whether there is anything left to look up. A
// daemon that runs and does not answer may be busy with the packets of the loop. The loop is
// believed in as long as its interface is there.
func (a loopAnswer) next(l lookup) (next loopAnswer, again bool) {
	if l.err == nil {
		return loopAnswer{loops: l.loops}, l.loops
	}
	a.unknown++
	if a.unknown < maxUnknown || a.loops && uapi.IsUnresponsive(l.err) {
		return a, true
	}
	return loopAnswer{}, false
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
	a, known := f.entered[e]
	if !known {
		if f.entered == nil {
			f.entered = map[tunnelEntry]loopAnswer{}
		}
		f.entered[e] = a
	}
	if !f.asking {
		f.asking = true
		go f.ask()
	}
	return a.loops
}

// askPause is the time until a loop through another tunnel is looked up again.
const askPause = 5 * time.Second

// ask asks until no entry loops or is unknown: the other tunnel's peers may change without a change of routes.
func (f *loopFinder) ask() {
	for f.askOnce() {
		select {
		case <-f.done:
			return
		case <-time.After(askPause):
		}
	}
}

// askOnce looks all entries up, including entries that come meanwhile, and reports whether to ask
// again.
func (f *loopFinder) askOnce() (again bool) {
	for more := true; more; {
		f.mu.Lock()
		entries := slices.Collect(maps.Keys(f.entered))
		f.mu.Unlock()
		answers, follower := map[tunnelEntry]lookup{}, f.dir.Follow()
		for _, e := range entries {
			loops, err := follower.Loops(e.own, e.link, e.to)
			answers[e] = lookup{loops, err}
		}
		var changed bool
		if changed, again, more = f.note(answers); changed {
			f.changed()
		}
	}
	return again
}

// note stores answers. It forgets entries that do not loop, as far as that is known: their next lookup asks again. It reports whether an answer has changed, whether to ask
// again, and whether that is for entries that came meanwhile.
func (f *loopFinder) note(answers map[tunnelEntry]lookup) (changed, again, more bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for e := range f.entered {
		_, answered := answers[e]
		more = more || !answered
	}
	for e, a := range answers {
		before := f.entered[e]
		next, keep := before.next(a)
		changed = changed || before.loops != next.loops
		f.entered[e] = next
		if !keep {
			delete(f.entered, e)
		}
	}
	f.asking = len(f.entered) > 0
	return changed, f.asking, more
}
