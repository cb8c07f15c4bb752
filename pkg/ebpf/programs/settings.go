// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// tickShift converts nanoseconds to the program's ticks (bpf/include/lane.h).
const tickShift = 16

// Gap returns the flowlet gap: how long a flow must be silent before it may change its lane. It is rounded to ticks of 65,536 ns,
// and SetGap with the result changes nothing.
func (s *State) Gap() (time.Duration, error) {
	all, err := s.settings()
	return time.Duration((all.FlowletGap+1)<<tickShift - 1), err // the longest gap with that number of ticks
}

// SetGap sets the flowlet gap, at once for programs that run. It must exceed the difference between the delays of any two lanes,
// or a flow that changes its lane is reordered.
func (s *State) SetGap(gap time.Duration) error {
	if gap <= 0 {
		return fmt.Errorf("setting the flowlet gap: invalid duration %v", gap)
	}
	return s.change(func(all *spreadSettings) { all.FlowletGap = uint64(gap) >> tickShift })
}

// setDefaultGap sets the gap in a new State.
func (s *State) setDefaultGap() error {
	all, err := s.settings()
	if err != nil || all.FlowletGap != 0 {
		return err
	}
	return s.SetGap(spread.DefaultGap)
}

// Paused reports whether messages to all peers keep the listen port.
func (s *State) Paused() (bool, error) {
	all, err := s.settings()
	return all.Paused != 0, err
}

// SetPaused makes messages to all peers keep the listen port, or ends that. It takes effect with the next message. Gather goes on.
func (s *State) SetPaused(paused bool) error {
	return s.change(func(all *spreadSettings) { all.Paused = flag[uint32](paused) })
}

// ticks returns the present time as the programs count it.
func ticks() (int64, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0, fmt.Errorf("reading the clock: %w", err)
	}
	return now.Nano() >> tickShift, nil
}

// SetPeerPaused is SetPaused for one peer; peers that are paused stay so when SetPeers changes them. If there is no such peer,
// errors.Is(err, ebpf.ErrKeyNotExist).
func (s *State) SetPeerPaused(tunnel uint16, endpoint netip.AddrPort, paused bool) error {
	key := peerKey(tunnel, endpoint)
	var value spreadPeer
	err := s.maps.Peers.Lookup(&key, &value)
	if err == nil {
		value.Paused = flag[uint16](paused)
		err = s.maps.Peers.Put(&key, &value)
	}
	if err != nil {
		return fmt.Errorf("pausing spread to %v: %w", endpoint, err)
	}
	return nil
}

func flag[T uint8 | uint16 | uint32](on bool) T {
	if on {
		return 1
	}
	return 0
}

func (s *State) settings() (all spreadSettings, err error) {
	if err := s.maps.Settings.Lookup(uint32(0), &all); err != nil {
		return all, fmt.Errorf("reading the eBPF map of settings: %w", err)
	}
	return all, nil
}

func (s *State) change(f func(all *spreadSettings)) error {
	all, err := s.settings()
	if err != nil {
		return err
	}
	f(&all)
	if err := s.maps.Settings.Put(uint32(0), &all); err != nil {
		return fmt.Errorf("writing the eBPF map of settings: %w", err)
	}
	return nil
}
