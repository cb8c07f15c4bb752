// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// device is a TUN. Unless it is persistent the kernel deletes the interface with its last descriptor, however the process ends.
type device struct {
	name     string
	features Features
	queues   []*queue
	stop     int           // eventfd
	lost     chan struct{} // from the queues to the monitor
	monitor  *monitor
	steering steering
	resting  sync.Once // of the readers
	rested   error     // whether they do
	closing  sync.Once
}

var _ Device = (*device)(nil)

// Open creates the interface in the network namespace of the calling thread. It is down at first and has no addresses.
//
// An interface of that name that exists already is an error that satisfies errors.Is(err, syscall.EBUSY), so that two
// processes never share one's queues. One that goes away because its process has just been killed is waited for, two seconds at
// most. A missing privilege satisfies errors.Is(err, os.ErrPermission), a missing
// /dev/net/tun errors.Is(err, os.ErrNotExist).
func Open(c Config) (Device, error) {
	c, err := c.complete()
	if err != nil {
		return nil, err
	}
	d := &device{lost: make(chan struct{}, 1)}
	if d.stop, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, explainOpen(fmt.Errorf("creating an eventfd: %w", err))
	}
	if err := d.open(&c); err != nil {
		return nil, errors.Join(explainOpen(err), d.closeFDs())
	}
	return d, nil
}

func explainOpen(err error) error {
	if errors.Is(err, unix.EMFILE) {
		return fmt.Errorf("%w (each queue takes a descriptor: raise ulimit -n)", err)
	}
	return err
}

func (d *device) open(c *Config) error {
	fd, name, err := awaitFirst(c, os.DirFS("/proc"))
	if err != nil {
		return err
	}
	d.name = name
	d.queues = append(d.queues, newQueue(fd, d.stop, d.lost, c.Linger))
	if d.features, err = setOffloads(fd, c); err != nil {
		return err
	}
	for len(d.queues) < c.Queues {
		fd, _, err := attachQueue(name, false)
		if err != nil {
			return err
		}
		d.queues = append(d.queues, newQueue(fd, d.stop, d.lost, c.Linger))
	}
	if d.monitor, err = startMonitor(fd, d.lost, name, c); err != nil || !c.Persist {
		return err
	}
	if err := d.persist(); err != nil {
		d.monitor.close()
		return err
	}
	return nil
}

// Name implements Device; a later renaming does not change it.
func (d *device) Name() string { return d.name }

// Queues implements Device.
func (d *device) Queues() []Queue {
	queues := make([]Queue, len(d.queues))
	for i, q := range d.queues {
		queues[i] = q
	}
	return queues
}

// Features implements Device.
func (d *device) Features() Features {
	features := d.features
	features.Steer = d.steering.isOn()
	return features
}

// Events implements Device.
func (d *device) Events() <-chan Event { return d.monitor.events }

// SetTrainLimit implements Device.
func (d *device) SetTrainLimit(bytes int) error { return d.monitor.setTrainLimit(bytes) }

// Close implements Device. Further calls wait for the first and return nil.
func (d *device) Close() (err error) {
	d.closing.Do(func() { err = d.close() })
	return err
}

// close wakes the readers, and closes descriptors once nobody can be using them.
func (d *device) close() error {
	if err := d.StopReading(); err != nil {
		return err
	}
	for _, q := range d.queues {
		q.writing.Shut()
		q.inject.writing.Shut()
	}
	d.monitor.close()
	d.steering.end()
	return d.closeFDs()
}

func (d *device) closeFDs() error {
	errs := []error{unix.Close(d.stop)}
	for _, q := range d.queues {
		errs = append(errs, unix.Close(q.fd))
	}
	return errors.Join(errs...)
}
