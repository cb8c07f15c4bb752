// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Keeper is what a Device may also be: one whose interface another Device can go on with.
type Keeper interface {
	// Keep returns a descriptor of each queue for Adopt, owned by the caller. The interface stays while one of them is open,
	// whatever becomes of the Device.
	Keep() (fds []int, err error)
	// StopReading has Read return os.ErrClosed, and returns when none is in a queue. Elements can still be written; what the host
	// sends waits in the queues.
	StopReading() error
}

var _ Keeper = (*device)(nil)

// Keep implements Keeper.
func (d *device) Keep() (fds []int, err error) {
	for _, q := range d.queues {
		fd, err := unix.FcntlInt(uintptr(q.fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("duplicating a queue of %s: %w", d.name, err), closeAll(fds))
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

func closeAll(fds []int) error {
	var errs []error
	for _, fd := range fds {
		errs = append(errs, unix.Close(fd))
	}
	return errors.Join(errs...)
}

// StopReading implements Keeper.
func (d *device) StopReading() error {
	d.resting.Do(func() { d.rested = d.stopReading() })
	return d.rested
}

func (d *device) stopReading() error {
	one := [8]byte{1} // any count but 0 makes the eventfd readable, for good as nobody reads it
	if _, err := unix.Write(d.stop, one[:]); err != nil {
		return fmt.Errorf("waking the readers of %s: %w", d.name, err)
	}
	for _, q := range d.queues {
		q.reading.Shut()
	}
	return nil
}

// Adopt returns a Device over the queues of an interface that another Device has kept (Keeper), in this process or another. It
// owns the descriptors then; after an error they are still the caller's. Queues are as many as there are, and the
// interface stays as it is: Config.Queues, MTU, QueueLen and Persist do not count. Config.Name is what Device.Name returns, whatever
// the interface is called by now; empty for that. steered tells whether a program chooses the queues.
func Adopt(fds []int, steered bool, c Config) (Device, error) {
	if len(fds) == 0 || len(fds) > MaxQueues {
		return nil, fmt.Errorf("taking over an interface with %d queues", len(fds))
	}
	name := ""
	for _, fd := range fds {
		is, err := nameOf(fd)
		if err == nil && name != "" && is != name {
			err = errForeign
		}
		if err != nil {
			return nil, fmt.Errorf("taking over an interface: %w", err)
		}
		name = is
	}
	d := &device{name: cmp.Or(c.Name, name), lost: make(chan struct{}, 1)}
	d.steering.on = steered
	var err error
	if d.stop, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, explainOpen(fmt.Errorf("creating an eventfd: %w", err))
	}
	if d.features, err = setOffloads(fds[0], &c); err == nil {
		d.monitor, err = resumeMonitor(fds[0], d.lost, name)
	}
	if err != nil {
		return nil, errors.Join(err, unix.Close(d.stop))
	}
	for _, fd := range fds {
		d.queues = append(d.queues, newQueue(fd, d.stop, d.lost, c.Linger))
	}
	return d, nil
}

// nameOf returns the name of the interface that a descriptor is a queue of, as Open makes them.
func nameOf(fd int) (string, error) {
	request, err := unix.NewIfreq("")
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.TUNGETIFF, request)
	}
	if err != nil {
		return "", fmt.Errorf("asking a queue for its interface: %w", err)
	}
	const want = unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR | unix.IFF_MULTI_QUEUE
	if request.Uint16()&want != want {
		return "", fmt.Errorf("interface %s: %w", request.Name(), errForeign)
	}
	return request.Name(), nil
}

// resumeMonitor begins to follow an interface as it is, wherever it is.
func resumeMonitor(fd int, lost <-chan struct{}, name string) (*monitor, error) {
	m := newMonitor(fd, lost)
	if home, err := netns.Get(); err == nil {
		m.home = home.UniqueId()
		_ = home.Close()
	}
	at, err := m.locate()
	if err != nil || at.id == m.home { // before Linux 5.2 it must be here
		if err == nil {
			name = at.name
			at.close()
		}
		if m.link, err = followLink(nil, name); err != nil {
			return nil, err
		}
		m.send(m.link.state)
	} else {
		at.close()
	}
	m.begin()
	return m, nil
}
