// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/agent"
)

// addressRetryInterval is how often an address is tried that another agent of this node listens on.
const addressRetryInterval = 100 * time.Millisecond

// serve serves probes and metrics at an address until ctx ends, except while the agent stands by. With an empty address, it does
// nothing. If another process listens there, which is the agent that a rolling update replaces, serve begins when that stops.
func serve(ctx context.Context, at string, c agent.Content) error {
	if at == "" { // net would listen on a random port of all addresses
		return nil
	}
	l, err := listen(ctx, at)
	if errors.Is(err, syscall.EADDRINUSE) {
		c.Log.Warn("address of probes and metrics in use, reconciling without them until another agent releases it", "address", at)
	} else if err != nil {
		return fmt.Errorf("listening for health checks and metrics on %s: %w", at, err)
	}
	go func() {
		for ctx.Err() == nil {
			serveOnce(ctx, at, l, c)
			l = nil
		}
		if l != nil {
			_ = l.Close()
		}
	}()
	return nil
}

func listen(ctx context.Context, at string) (net.Listener, error) {
	return new(net.ListenConfig).Listen(ctx, "tcp", at)
}

// serveOnce serves until the agent stands by, or waits until it does not. l is a listener, which it closes, or nil.
func serveOnce(ctx context.Context, at string, l net.Listener, c agent.Content) {
	standby, changed := c.Stats.Standby()
	if standby {
		if l != nil {
			_ = l.Close()
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
		return
	}
	if l == nil {
		var err error
		if l, err = listen(ctx, at); err != nil {
			select {
			case <-time.After(addressRetryInterval):
			case <-ctx.Done():
			}
			return
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-changed:
			cancel()
		case <-ctx.Done():
		}
	}()
	if err := agent.Serve(ctx, l, c); err != nil {
		c.Log.Error("serving probes and metrics failed, not answering them until a retry succeeds", "address", at, "after", addressRetryInterval, "error", err)
	}
}
