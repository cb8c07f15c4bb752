// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
	"github.com/ropewalk/ropewalk/pkg/observe/term"
	"github.com/ropewalk/ropewalk/pkg/observe/top"
)

// deviceFlowsDocument is the document that --json prints for a device.
type deviceFlowsDocument struct {
	header
	top.SpreadFrame
}

// spreadReader reads the flows of a device; they are nil if nothing is attached to it. It is the method Flows of spreader.Host.
type spreadReader func(ctx context.Context, device string) (*spreader.DeviceFlows, error)

// first reads from a device on which another WireGuard is spread. If there is none, it returns notServed.
func (read spreadReader) first(ctx context.Context, device string, notServed error) (*spreader.DeviceFlows, error) {
	if _, err := net.InterfaceByName(device); err != nil {
		return nil, notServed
	}
	f, err := read(ctx, device)
	switch {
	case err != nil:
		return nil, withHint(err)
	case f == nil:
		return nil, notServed
	}
	return f, nil
}

// again reads from a device that has been read from before.
func (read spreadReader) again(ctx context.Context, device string) (*spreader.DeviceFlows, error) {
	f, err := read(ctx, device)
	switch {
	case err != nil:
		return nil, withHint(err)
	case f == nil:
		return nil, fmt.Errorf("nothing is spread on %s any more", device)
	}
	return f, nil
}

// device shows the flows of a device on which another WireGuard is spread. If there is none, it returns notServed.
func (o *flowsFlags) device(ctx context.Context, out io.Writer, name string, notServed error) error {
	read := spreadReader(new(spreader.Host).Flows)
	before, err := read.first(ctx, name, notServed)
	if err != nil {
		return err
	}
	if err := o.checkDevice(before); err != nil {
		return err
	}
	again := func() (*spreader.DeviceFlows, error) { return read.again(ctx, name) }
	return intervals(ctx, o, before, again, nil, func(before, now *spreader.DeviceFlows) error { return o.printDevice(out, before, now) })
}

// checkDevice returns an error if an option does not fit a device.
func (o *flowsFlags) checkDevice(flows *spreader.DeviceFlows) error {
	if o.order != "rate" {
		return usageError{fmt.Errorf("--sort %s: %s is a device of `ropewalk spread attach`, which is sorted by rate only", o.order, flows.Device)}
	}
	f := top.CompareSpread(nil, flows)
	if f.Only(o.peer); o.peer != "" && len(f.Ports) == 0 {
		return fmt.Errorf("no peer of %s has an endpoint that begins with %q", flows.Device, o.peer)
	}
	return nil
}

func (o *flowsFlags) printDevice(out io.Writer, before, now *spreader.DeviceFlows) error {
	f := top.CompareSpread(before, now)
	f.Only(o.peer)
	found := len(f.Ports)
	if o.limit > 0 {
		f.Ports, f.Peers = f.Ports[:min(found, o.limit)], f.Peers[:min(len(f.Peers), o.limit)]
	}
	if o.json {
		return writeJSON(out, deviceFlowsDocument{headerOf("SpreadFlows"), *f})
	}
	text := f.Render(top.Options{Width: outputWidth(out), Color: colored(out), ASCII: !utf8Locale()})
	if found > len(f.Ports) {
		text += term.Count(found-len(f.Ports), "more source port") + ", see --limit\n"
	}
	if o.watch {
		text += "\n"
	}
	_, err := io.WriteString(out, text)
	return err
}

// pause waits, or returns the cause of the end of ctx.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
