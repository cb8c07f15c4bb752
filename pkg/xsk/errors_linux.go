// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Errors to test for with errors.Is; the system's own error is wrapped where there is one.
var (
	// ErrDown says that the device is down. It works again once it is up.
	ErrDown = fmt.Errorf("the device is down: %w", unix.ENETDOWN)
	// ErrGone says that the device was deleted, or left the namespace. The Socket will never work again.
	ErrGone = fmt.Errorf("the device is gone: %w", unix.ENXIO)
	// ErrQueueGone says that the device has fewer queues now.
	ErrQueueGone = errors.New("the device no longer has the queue")
	// ErrNoQueue says that the device never had so many queues.
	ErrNoQueue = errors.New("the device has no such queue")
	// ErrBusy says that the queue is in use: by another Socket, or by something else that brings memory of its own.
	ErrBusy = fmt.Errorf("the queue is in use: %w", unix.EBUSY)
)

// stateError turns what the kernel says to a socket that was bound into one of the errors above.
func stateError(call string, errno unix.Errno) error {
	switch errno {
	case 0:
		return nil
	case unix.ENETDOWN:
		return ErrDown
	case unix.ENXIO, unix.ENODEV:
		return ErrGone
	case unix.EINVAL: // what zero-copy drivers say
		return ErrQueueGone
	}
	return os.NewSyscallError(call, errno)
}

func explainSocket(err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("creating an AF_XDP socket: %w (needs CAP_NET_RAW)", err)
	case errors.Is(err, unix.EAFNOSUPPORT):
		return fmt.Errorf("creating an AF_XDP socket: %w: %w (the kernel is built without CONFIG_XDP_SOCKETS)",
			errors.ErrUnsupported, err)
	}
	return fmt.Errorf("creating an AF_XDP socket: %w", err)
}

func explainRegister(err error) error {
	if errors.Is(err, unix.ENOBUFS) {
		return fmt.Errorf("registering the UMEM: %w (raise ulimit -l, or give CAP_IPC_LOCK)", err)
	}
	return fmt.Errorf("registering the UMEM: %w", err)
}

// explainBind is told of every flag that an old kernel might refuse, so that EINVAL has one meaning left.
func explainBind(c *Config, err error) error {
	where := fmt.Sprintf("binding to queue %d of device %d", c.Queue, c.Interface)
	switch {
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%s: %w", where, ErrBusy)
	case errors.Is(err, unix.ENODEV):
		return fmt.Errorf("%s: %w: %w", where, ErrGone, err)
	case errors.Is(err, unix.ENETDOWN):
		return fmt.Errorf("%s: %w", where, ErrDown)
	case errors.Is(err, unix.EINVAL) && c.Mode != ZeroCopy:
		return fmt.Errorf("%s: %w: %w", where, ErrNoQueue, err)
	}
	return fmt.Errorf("%s: %w", where, err)
}
