// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// device is a multi-queue TUN device. Unless it is persistent, the kernel deletes the interface with its last
// descriptor, however the process ends.
type device struct {
	name      string
	features  Features
	queues    []*queue
	stop      int           // eventfd
	deleted   chan struct{} // a token when a queue finds that the interface was deleted
	monitor   *monitor
	steering  steering
	reading   readingState
	closeOnce sync.Once
}

// readingState is whether the queues may be read.
type readingState struct {
	mu              sync.Mutex
	stopped, closed bool
}

var (
	_ Device      = (*device)(nil)
	_ Indexed     = (*device)(nil)
	_ DropCounter = (*device)(nil)
)

// Open creates the interface in the network namespace of the calling thread. It is initially down and has no
// addresses.
//
// An existing interface of that name is an error that satisfies errors.Is(err, syscall.EBUSY), so two processes never
// share the queues of one. Open waits up to two seconds for it to go away: if its process has just been killed, the
// kernel unregisters it late. A missing privilege satisfies errors.Is(err, os.ErrPermission). A missing /dev/net/tun satisfies
// errors.Is(err, os.ErrNotExist).
func Open(c Config) (Device, error) {
	c, err := c.complete()
	if err != nil {
		return nil, err
	}
	d := &device{deleted: make(chan struct{}, 1)}
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
		return fmt.Errorf("%w (each queue needs a file descriptor: raise ulimit -n)", err)
	}
	return err
}

func (d *device) open(c *Config) error {
	fd, name, err := attachFirstWithRetry(c)
	if err != nil {
		return err
	}
	d.name = name
	d.queues = append(d.queues, newQueue(fd, d.stop, d.deleted, c.BusyPoll))
	if d.features, err = setOffloads(fd, c); err != nil {
		return err
	}
	for len(d.queues) < c.Queues {
		fd, _, err := attachQueue(name, false)
		if err != nil {
			return err
		}
		d.queues = append(d.queues, newQueue(fd, d.stop, d.deleted, c.BusyPoll))
	}
	if d.monitor, err = startMonitor(fd, d.deleted, name, c); err != nil || !c.Persist {
		return err
	}
	if err := d.persist(); err != nil {
		d.monitor.close()
		return err
	}
	return nil
}

// Name implements Device. Renaming the interface later does not change it.
func (d *device) Name() string { return d.name }

// Index implements Indexed.
func (d *device) Index() int { return int(d.monitor.index.Load()) }

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
	features.Steer, features.NetNS = d.steering.isEnabled(), d.monitor.netNS.Load()
	return features
}

// Events implements Device.
func (d *device) Events() <-chan Event { return d.monitor.events }

// StopReading implements Device.
func (d *device) StopReading() error {
	d.reading.mu.Lock()
	defer d.reading.mu.Unlock()
	return d.stopReading()
}

// stopReading stops the readers. The caller holds reading.mu.
func (d *device) stopReading() error {
	if d.reading.stopped {
		return nil
	}
	one := [8]byte{1} // a nonzero count makes the eventfd readable, until ResumeReading reads it
	if _, err := unix.Write(d.stop, one[:]); err != nil {
		return fmt.Errorf("waking the readers of %s: %w", d.name, err)
	}
	d.reading.stopped = true
	for _, q := range d.queues {
		q.reading.Close()
	}
	return nil
}

// ResumeReading implements Device.
func (d *device) ResumeReading() error {
	d.reading.mu.Lock()
	defer d.reading.mu.Unlock()
	switch {
	case d.reading.closed:
		return os.ErrClosed
	case !d.reading.stopped:
		return nil
	}
	var count [8]byte
	if _, err := unix.Read(d.stop, count[:]); err != nil {
		return fmt.Errorf("resuming to read from %s: %w", d.name, err)
	}
	for _, q := range d.queues {
		q.reading.Open()
	}
	d.reading.stopped = false
	return nil
}

// Close implements Device. Further calls wait for the first and return nil.
func (d *device) Close() (err error) {
	d.closeOnce.Do(func() { err = d.close() })
	return err
}

// close wakes the readers. It closes the descriptors after the last user has left.
func (d *device) close() error {
	if err := d.stopReadingForEver(); err != nil {
		return err
	}
	for _, q := range d.queues {
		q.writer.guard.Close()
		q.injector.guard.Close()
	}
	d.monitor.close()
	d.steering.close()
	return d.closeFDs()
}

// stopReadingForEver is StopReading before which or after which ResumeReading fails.
func (d *device) stopReadingForEver() error {
	d.reading.mu.Lock()
	defer d.reading.mu.Unlock()
	d.reading.closed = true
	return d.stopReading()
}

func (d *device) closeFDs() error {
	errs := []error{unix.Close(d.stop)}
	for _, q := range d.queues {
		errs = append(errs, unix.Close(q.fd))
	}
	return errors.Join(errs...)
}
