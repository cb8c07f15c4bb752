// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// HandoverDevice is an optional interface of a Device whose interface another Device can continue to serve (handover).
type HandoverDevice interface {
	// DuplicateFDs returns a duplicate of each queue's descriptor, owned by the caller, for OpenFromFDs. The interface stays while
	// one of them is open, also after the Device is closed.
	DuplicateFDs() (fds []int, err error)
}

var _ HandoverDevice = (*device)(nil)

// DuplicateFDs implements HandoverDevice.
func (d *device) DuplicateFDs() (fds []int, err error) {
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

// OpenFromFDs returns a Device for the duplicated queue descriptors of another Device
// (HandoverDevice), of this process or another. On success it owns the descriptors; after an error
// the caller still does. The interface stays as it is, except for its gso_max_size and a queue
// length that nobody has set. With Config.Persist it becomes persistent. Config.Queues and MTU are
// ignored. Device.Name returns Config.Name, even after a renaming; if empty, the interface's
// current name. steered reports whether a steering program is set.
func OpenFromFDs(fds []int, steered bool, c Config) (Device, error) {
	if len(fds) == 0 || len(fds) > MaxQueues {
		return nil, fmt.Errorf("opening a TUN device from %d descriptors: 1 to %d are allowed", len(fds), MaxQueues)
	}
	name := ""
	for _, fd := range fds {
		current, err := queueInterface(fd, len(fds))
		if err == nil && name != "" && current != name {
			err = errors.New("the descriptors belong to different interfaces")
		}
		if err != nil {
			return nil, fmt.Errorf("opening a TUN device from descriptors: %w", err)
		}
		name = current
	}
	d := &device{name: cmp.Or(c.Name, name), deleted: make(chan struct{}, 1)}
	d.steering.enabled = steered
	var err error
	if d.stop, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, explainOpen(fmt.Errorf("creating an eventfd: %w", err))
	}
	if d.features, err = setOffloads(fds[0], &c); err == nil {
		d.monitor, err = resumeMonitor(fds[0], len(fds), d.deleted, name, &c)
	}
	if err != nil {
		return nil, errors.Join(err, unix.Close(d.stop))
	}
	for _, fd := range fds {
		d.queues = append(d.queues, newQueue(fd, d.stop, d.deleted, c.BusyPoll))
	}
	if c.Persist {
		if err := d.persist(); err != nil {
			d.monitor.close()
			return nil, errors.Join(err, unix.Close(d.stop))
		}
	}
	return d, nil
}

// Adopt returns a Device for an interface that another program has created, from the descriptor of its queue. It needs the flags IFF_TUN,
// IFF_NO_PI and IFF_VNET_HDR. On success the Device owns the descriptor; after an error the caller still does. See OpenFromFDs for the rest.
func Adopt(fd int, c Config) (Device, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("adopting a TUN device: %w", err)
	}
	return OpenFromFDs([]int{fd}, false, c)
}

// queueInterface returns the name of the interface that fd is a queue of. The queue must have the flags that Open sets; the only queue
// of an interface need not permit others.
func queueInterface(fd, queues int) (string, error) {
	request, err := unix.NewIfreq("")
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.TUNGETIFF, request)
	}
	if err != nil {
		return "", fmt.Errorf("querying the interface of a descriptor, which must be a queue of a TUN device: %w", err)
	}
	if missing := missingFlags(request.Uint16(), queues); len(missing) > 0 {
		return "", fmt.Errorf("interface %s lacks %s", request.Name(), strings.Join(missing, ", "))
	}
	return request.Name(), nil
}

// missingFlags returns the names of the flags that an interface with this number of queues needs and does not have.
func missingFlags(have uint16, queues int) (names []string) {
	for _, flag := range []struct {
		bit    uint16
		name   string
		needed bool
	}{
		{unix.IFF_TUN, "IFF_TUN", true},
		{unix.IFF_NO_PI, "IFF_NO_PI", true},
		{unix.IFF_VNET_HDR, "IFF_VNET_HDR", true},
		{unix.IFF_MULTI_QUEUE, "IFF_MULTI_QUEUE", queues > 1},
	} {
		if flag.needed && have&flag.bit == 0 {
			names = append(names, flag.name)
		}
	}
	return names
}

// resumeMonitor follows an interface in whichever namespace it is. In another one than this it does not configure it.
func resumeMonitor(fd, queues int, deleted <-chan struct{}, name string, c *Config) (*monitor, error) {
	m := newMonitor(fd, deleted, c.Log)
	if origin, err := netns.Get(); err == nil {
		m.origin = origin.UniqueId()
		_ = origin.Close()
	}
	at, err := m.locate()
	if err != nil || at.id == m.origin { // before Linux 5.2 it must be in this namespace
		if err == nil {
			name = at.name
			at.close()
		}
		if m.link, err = followLink(nil, name); err != nil {
			return nil, err
		}
		m.index.Store(int32(m.link.index))
		m.link.acceptWholeTrains()
		m.link.lengthenQueues(queues)
		if c.Persist {
			if err := m.link.markPersistent(); err != nil {
				m.link.close()
				return nil, err
			}
		}
		m.send(m.link.state)
	} else {
		at.close()
	}
	m.start()
	return m, nil
}
