// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
	"github.com/ropewalk/ropewalk/pkg/observe/top"
	"github.com/ropewalk/ropewalk/pkg/observe/top/host"
	"github.com/ropewalk/ropewalk/pkg/observe/top/live"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
)

// topSource samples an interface or a device. It may be closed concurrently.
type topSource interface {
	next(flows bool) (live.Screen, error) // compares a sample with the previous one
	close()
}

// source returns the source for an interface that a daemon serves, else for a device of `ropewalk spread attach`.
func (o *topFlags) source(ctx context.Context, dir uapi.Dir, name string, read spreadReader) (topSource, error) {
	client, err := dialDaemon(dir, name)
	if err == nil {
		return &interfaceSource{dir: dir, name: name, machine: host.New(), client: client}, nil
	}
	if exitCode(err) != exitUnreachable {
		return nil, err
	}
	if _, err := read.first(ctx, name, err); err != nil {
		return nil, err
	}
	if o.view != top.Overview.String() && o.view != top.Flows.String() {
		return nil, usageError{fmt.Errorf("--view %s: %s is a device of `ropewalk spread attach`, which has the view %s only", o.view, name, top.Flows)}
	}
	return &deviceSource{read: func() (*spreader.DeviceFlows, error) { return read.again(ctx, name) }}, nil
}

// deviceSource samples a device on which another WireGuard is spread.
type deviceSource struct {
	read func() (*spreader.DeviceFlows, error)
	last *spreader.DeviceFlows
}

func (d *deviceSource) next(bool) (live.Screen, error) {
	now, err := d.read()
	if err != nil {
		return nil, err
	}
	before := d.last
	d.last = now
	return top.CompareSpread(before, now), nil
}

func (d *deviceSource) close() {}

// interfaceSource samples a daemon. It keeps one connection, and connects again after an error.
type interfaceSource struct {
	dir     uapi.Dir
	name    string
	machine *host.Reader
	last    top.Sample

	mu     sync.Mutex
	client *uapi.Client
}

func (s *interfaceSource) next(flows bool) (live.Screen, error) {
	client, err := s.connection()
	if err != nil {
		return nil, err
	}
	now, err := s.query(client, flows)
	if err != nil {
		s.close() // the next sample connects again
		return nil, err
	}
	before := s.last
	s.last = now
	return top.Compare(&before, &now), nil
}

func (s *interfaceSource) connection() (client *uapi.Client, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client == nil {
		s.client, err = dialDaemon(s.dir, s.name)
	}
	return s.client, err
}

// query asks for flows only where they are shown: the daemon counts them while it is asked.
func (s *interfaceSource) query(client *uapi.Client, flows bool) (top.Sample, error) {
	status, err := client.Status()
	if err != nil {
		return top.Sample{}, err
	}
	var stats device.Stats
	if err := client.Stats(&stats); err != nil {
		return top.Sample{}, err
	}
	if stats.Interface == "" {
		return top.Sample{}, fmt.Errorf("interface %s is not served by ropewalk: its daemon does not report lanes", s.name)
	}
	sample := s.machine.Sample(&status, stats)
	if flows {
		sample.Flows = new(device.FlowReport)
		if err := readFlows(client, s.name, sample.Flows); err != nil {
			return top.Sample{}, err
		}
	}
	return sample, nil
}

func (s *interfaceSource) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client != nil {
		s.client.Close()
		s.client = nil
	}
}
