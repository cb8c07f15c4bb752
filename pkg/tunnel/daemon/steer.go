// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"log/slog"
	"sync"

	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/pkg/netio/thread"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
)

// steer loads the program that chooses the TUN queue by flow hash. Without it the kernel sends a
// flow to the queue that its answers arrive on. All transmit work for one peer may then be on one
// lane. Fragmented datagrams of a flow may take another lane than the others.
func steer(log *slog.Logger, t tun.Device) {
	if len(t.Queues()) == 1 {
		return
	}
	if err := attachSteer(t); err != nil {
		log.Warn("attaching the TUN steering program (eBPF) failed, all flows to a peer may share one lane until this daemon restarts", "error", err)
	}
}

func attachSteer(t tun.Device) error {
	s, ok := t.(tun.Steerer)
	if !ok {
		return errors.ErrUnsupported
	}
	program, err := programs.LoadSteer()
	if err != nil {
		return err
	}
	return errors.Join(s.SetSteering(program.FD()), program.Close())
}

// ownThread returns a function that locks a lane's loop to its thread. It names the thread for perf and top, and sets a short time slice
// and the nice value, except while the loop yields to applications.
func ownThread(log *slog.Logger, nice int) func(loop string) (yield func(bool)) {
	var once sync.Once
	check := func(err error) {
		if err != nil {
			once.Do(func() {
				log.Warn("setting the time slice or the nice value of a lane's thread failed, applications may delay packets (logged once)", "nice", nice, "error", err)
			})
		}
	}
	return func(loop string) func(bool) {
		t, err := thread.Lock("rw-"+loop, thread.Options{Slice: thread.MinSlice, Nice: nice})
		check(err)
		return func(yield bool) { check(t.Yield(yield)) }
	}
}
