// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/udp"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// The operations whose contention is measured.
const (
	contendAtomic   = "atomic add"
	contendReserve  = "reserve 45 counters"
	contendWindow45 = "replay window, 45 messages"
	contendWindow1  = "replay window, 1 message"
	contendTrain    = "seal and open 45 × 1420 B"
	contendSingle   = "seal and open 1 × 64 B"
	contendSend     = "send a train from a source"
	contendTUNWrite = "write a train to the TUN"
	trainSegments   = 45
	trainPayload    = 1380
	outerMessage    = 1452
	sendSourcePort  = 61000
	blackholeAddr   = "198.51.100.9"
	lagShare        = 4
)

// contentions measures all operations.
func contentions() (map[string]contention, error) {
	all := map[string]contention{}
	for _, m := range []struct {
		name string
		op   func() (func(thread, object int), func() error, error)
	}{
		{contendAtomic, atomicOp},
		{contendReserve, reserveOp},
		{contendWindow45, func() (func(int, int), func() error, error) { return windowOp(trainSegments) }},
		{contendWindow1, func() (func(int, int), func() error, error) { return windowOp(1) }},
		{contendTrain, func() (func(int, int), func() error, error) { return sessionOp(trainSegments, trainPayload) }},
		{contendSingle, func() (func(int, int), func() error, error) { return sessionOp(1, 24) }},
		{contendSend, sendOp},
		{contendTUNWrite, tunOp},
	} {
		op, closeOp, err := m.op()
		if err != nil {
			return nil, fmt.Errorf("preparing %q: %w", m.name, err)
		}
		c, err := contend(op)
		if err := errors.Join(err, closeOp()); err != nil {
			return nil, fmt.Errorf("measuring %q: %w", m.name, err)
		}
		all[m.name] = c
	}
	return all, nil
}

func noClose() error { return nil }

// padded is a value in cache lines of its own.
type padded[T any] struct {
	_     [4096]byte
	value T
	_     [4096]byte
}

// newPaddedPair returns one value for each thread.
func newPaddedPair[T any]() [2]*padded[T] { return [2]*padded[T]{new(padded[T]), new(padded[T])} }

func atomicOp() (func(thread, object int), func() error, error) {
	words := newPaddedPair[atomic.Uint64]()
	return func(_, object int) { words[object].value.Add(1) }, noClose, nil
}

func reserveOp() (func(thread, object int), func() error, error) {
	var pairs [2]*session.Keypair
	for i := range pairs {
		var err error
		if pairs[i], _, err = newPair(); err != nil {
			return nil, nil, err
		}
	}
	return func(_, object int) { pairs[object].Reserve(trainSegments) }, noClose, nil
}

// windowOp marks runs of n counters in a replay window, as two lanes do that receive every other run. A thread that falls behind
// skips runs, since a lane would receive what is sent now.
func windowOp(n int) (func(thread, object int), func() error, error) {
	windows := newPaddedPair[session.Window]()
	next := newPaddedPair[atomic.Uint64]() // number of the thread's next run
	counters, fresh := newPaddedPair[[trainSegments]uint64](), newPaddedPair[[trainSegments]bool]()
	far := uint64(session.WindowSize / n / lagShare)
	calls := newPaddedPair[uint64]()
	return func(thread, object int) {
		turn := next[thread].value.Load()
		if calls[thread].value++; calls[thread].value%64 == 0 {
			turn = max(turn, max(next[1-thread].value.Load(), far)-far)
		}
		next[thread].value.Store(turn + 1)
		first := (2*turn + uint64(thread)) * uint64(n)
		run := counters[thread].value[:n]
		for i := range run {
			run[i] = first + uint64(i)
		}
		windows[object].value.AcceptRun(run, fresh[thread].value[:n])
	}, noClose, nil
}

// sessionOp seals and opens a train. With one object, the threads share the session's counter and replay window.
func sessionOp(packets, size int) (func(thread, object int), func() error, error) {
	var laps [2]*trainBench
	for i := range laps {
		var err error
		if laps[i], err = newTrainBench(packets, size); err != nil {
			return nil, nil, err
		}
		laps[i].split(0)
	}
	return func(thread, object int) {
		mine, keys := laps[thread], laps[object]
		counter, _ := keys.a.Reserve(packets)
		keys.a.SealTrain(&mine.scratch, mine.sealed[0], mine.layout, counter)
		keys.b.OpenTrain(&mine.scratch, 0, mine.sealed[0], mine.layout.Stride(), mine.opened)
	}, noClose, nil
}

// sendOp sends a train to a blackhole. With one object, the threads share the source's socket.
func sendOp() (func(thread, object int), func() error, error) {
	lab, err := netlab.New("scale")
	if err != nil {
		return nil, nil, err
	}
	var port underlay.Port
	var sources [2]int
	err = inBlackholeHost(lab, func() (err error) {
		if port, err = udp.Open(udp.Config{Lanes: 2, NoIPv6: true}); err != nil {
			return err
		}
		for i := range sources {
			if sources[i], err = port.OpenSource(sendSourcePort + uint16(i)); err != nil {
				return errors.Join(err, port.Close())
			}
		}
		return nil
	})
	if err != nil {
		return nil, nil, errors.Join(err, lab.Close())
	}
	to := &underlay.Endpoint{Dst: netip.AddrPortFrom(netip.MustParseAddr(blackholeAddr), listenPort)}
	var runs [2][]underlay.Run
	for i := range runs {
		data := make([]byte, trainSegments*outerMessage)
		runs[i] = []underlay.Run{{To: to, Parts: [][]byte{data}, SegSize: outerMessage, Segments: trainSegments}}
	}
	op := func(thread, object int) {
		runs[thread][0].Source = sources[object]
		port.Lane(thread).Send(runs[thread])
	}
	return op, func() error { return errors.Join(port.Close(), lab.Close()) }, nil
}

// inBlackholeHost calls f in a new host, whose packets all go over a cable to a host that drops them.
func inBlackholeHost(lab *netlab.Lab, f func() error) error {
	host, err := lab.Host("sender")
	if err != nil {
		return err
	}
	end, err := lab.Host("deadend")
	if err != nil {
		return err
	}
	own := netip.PrefixFrom(netip.MustParseAddr("198.51.100.1"), 24)
	cable, err := lab.Cable(host, end, netlab.CableConfig{AddrsA: []netip.Prefix{own}})
	if err != nil {
		return err
	}
	return host.Do(func() error {
		link, err := netlink.LinkByName(cable.DeviceA)
		if err != nil {
			return fmt.Errorf("finding %s: %w", cable.DeviceA, err)
		}
		nobody := &netlink.Neigh{
			LinkIndex: link.Attrs().Index, IP: netip.MustParseAddr(blackholeAddr).AsSlice(), State: netlink.NUD_PERMANENT,
			HardwareAddr: []byte{2, 0, 0, 0, 0, 9},
		}
		if err := netlink.NeighSet(nobody); err != nil {
			return fmt.Errorf("adding a neighbour: %w", err)
		}
		return f()
	})
}

// tunOp writes a train, which the host drops, to a queue of a TUN. Each thread has its own queue. With one object, both queues
// belong to the same TUN.
func tunOp() (func(thread, object int), func() error, error) {
	lab, err := netlab.New("scale")
	if err != nil {
		return nil, nil, err
	}
	host, err := lab.Host("tun")
	if err != nil {
		return nil, nil, errors.Join(err, lab.Close())
	}
	var devices [2]tun.Device
	for i := range devices {
		name := fmt.Sprintf("scale%d", i)
		err = host.Do(func() (err error) {
			devices[i], err = tun.Open(tun.Config{Name: name, Queues: 2})
			return err
		})
		if err == nil {
			err = host.SetUp(name, 0, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 78, byte(i), 1}), 24))
		}
		if err != nil {
			return nil, nil, errors.Join(err, lab.Close())
		}
	}
	ends := flow.Ends{
		Src: netip.AddrPortFrom(netip.MustParseAddr("10.78.0.7"), 1000), Dst: netip.AddrPortFrom(netip.MustParseAddr(blackholeAddr), 2000),
	}
	parts := [][]byte{(&flow.Flow{Ends: ends}).Train(trainSegments, trainPayload)}
	op := func(thread, object int) { _ = devices[object].Queues()[thread].Write(parts) }
	return op, func() error { return errors.Join(devices[0].Close(), devices[1].Close(), lab.Close()) }, nil
}
