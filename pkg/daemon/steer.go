// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"log/slog"
	"sync"

	"github.com/ropewalk/ropewalk/pkg/datapath"
	"github.com/ropewalk/ropewalk/pkg/thread"
	"github.com/ropewalk/ropewalk/pkg/tun"
)

// steer makes the flow hash choose the TUN queue. Where it cannot, flows follow their answers: all transmit work for one
// peer may then fall to one lane, and nothing else is lost.
func steer(log *slog.Logger, t tun.Device) {
	if len(t.Queues()) == 1 {
		return
	}
	if err := attachSteer(t); err != nil {
		log.Warn("lanes are not steered", "interface", t.Name(), "error", err)
	}
}

func attachSteer(t tun.Device) error {
	s, ok := t.(tun.Steerer)
	if !ok {
		return errors.ErrUnsupported
	}
	program, err := datapath.LoadSteer()
	if err != nil {
		return err
	}
	return errors.Join(s.SetSteering(program.FD()), program.Close())
}

// ownThread gives each loop of a lane a thread that perf and top can tell from the others, and that does not wait long.
func ownThread(log *slog.Logger, nice int) func(loop string) {
	var once sync.Once
	return func(loop string) {
		err := thread.Own("rw-"+loop, thread.Options{Slice: thread.MinSlice, Nice: nice})
		if err != nil {
			once.Do(func() { log.Warn("lanes are not scheduled as they should be", "nice", nice, "error", err) })
		}
	}
}
