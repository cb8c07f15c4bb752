// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
)

// Restart kills the daemon of a side, then starts and configures it again, as a supervisor does after a crash.
func (l *Lab) Restart(ctx context.Context, s *Side) error {
	if err := s.kill(ctx); err != nil {
		return err
	}
	if err := s.start(ctx, l.cfg.Daemon, s.Iface); err != nil {
		return err
	}
	return s.configure(l.other(s))
}

func (l *Lab) other(s *Side) *Side {
	if s == l.A {
		return l.B
	}
	return l.A
}

// Replace starts argv, which takes the tunnel over from the side's daemon, and returns when that has exited. A daemon whose
// exit failed is an error. If the takeover fails, Replace stops argv and the side keeps its daemon.
func (s *Side) Replace(ctx context.Context, argv ...string) error {
	next, err := StartProcess(ctx, s.Host, argv...)
	if err != nil {
		return err
	}
	old := s.Daemon
	old.stopping.Store(true) // its exit is expected
	select {
	case <-old.Done():
		s.Daemon = next
		return old.Stop() // reports a failed exit
	case <-next.Done():
		err = next.Err()
	case <-time.After(ReadyLimit):
		err = errors.New("the takeover did not complete" + next.LastWords())
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	old.stopping.Store(false)
	return errors.Join(err, next.Stop())
}

// kill ends the daemon without any warning and returns when its interface is gone too.
func (s *Side) kill(ctx context.Context) error {
	s.Daemon.kill()
	if err := poll(ctx, nil, func() error { return s.Host.Do(func() error { return absent(s.Iface) }) }); err != nil {
		return fmt.Errorf("waiting for %s to go: %w", s.Iface, err)
	}
	return nil
}

// absent returns nil if there is no device of that name.
func absent(device string) error {
	_, err := netlink.LinkByName(device)
	if _, gone := errors.AsType[netlink.LinkNotFoundError](err); gone {
		return nil
	}
	return cmp.Or(err, errors.New("it is still there"))
}
