// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"time"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
)

// errSocketRemoved is the cause of the end of a socket whose file was removed.
var errSocketRemoved = errors.New("the control socket's file was removed")

// listenPause is the time between two attempts to create a removed socket again.
const listenPause = time.Second

// serveSockets serves the control socket, and with KeepSocket the sockets that replace it.
func (d *Daemon) serveSockets(ctx context.Context, s *uapi.Server) error {
	for {
		err := d.serveSocket(ctx, s)
		if !errors.Is(err, errSocketRemoved) {
			return err
		}
		if !d.o.KeepSocket {
			d.log.Info("control socket was removed, ending the tunnel")
			return nil
		}
		if !d.listenAgain(ctx) {
			return nil
		}
	}
}

// serveSocket serves the present socket until ctx ends, the socket fails, or its file is removed, which is errSocketRemoved. After a handover a
// successor has the socket.
func (d *Daemon) serveSocket(ctx context.Context, s *uapi.Server) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	l := d.listener // which changes here alone
	go func() {
		err := l.AwaitRemoval(ctx)
		switch {
		case err == nil:
			d.mu.RLock() // waits for a handover that has stopped the tunnel
			defer d.mu.RUnlock()
			cancel(errSocketRemoved)
		case ctx.Err() == nil:
			d.log.Warn("watching the control socket's file failed, this daemon does not notice its removal", "error", err)
		}
	}()
	err := s.Serve(ctx, l)
	if cause := context.Cause(ctx); err == nil && errors.Is(cause, errSocketRemoved) && !d.wasHandedOver() {
		return cause
	}
	return err
}

// listenAgain replaces a removed socket. It repeats that until it succeeds, or until ctx or the tunnel ends.
func (d *Daemon) listenAgain(ctx context.Context) bool {
	for attempt := 0; ; attempt++ {
		l, err := uapi.Listen(d.Name())
		if err == nil {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.listener = l
			d.log.Warn("control socket was removed, created it again")
			return true
		}
		if attempt == 0 {
			d.log.Error("control socket was removed and creating it again failed, retrying: commands do not reach this daemon until then", "error", err)
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(listenPause):
		}
	}
}
