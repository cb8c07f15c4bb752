// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Errors to test for with errors.Is. Each wraps the system's error where there is one.
var (
	// ErrDown means that the device is down. The Socket works again once the device is up.
	ErrDown = fmt.Errorf("the device is down: %w", unix.ENETDOWN)
	// ErrGone means that the device was deleted or moved to another namespace. The Socket cannot work again.
	ErrGone = fmt.Errorf("the device is gone: %w", unix.ENXIO)
	// ErrQueueGone means that the device no longer has the Socket's queue.
	ErrQueueGone = errors.New("the device no longer has the queue")
	// ErrNoQueue means that the device has no queue of that number.
	ErrNoQueue = errors.New("the device has no such queue")
	// ErrBusy means that the queue is in use, by another Socket or another memory provider.
	ErrBusy = fmt.Errorf("the queue is in use: %w", unix.EBUSY)
)

// stateError converts the kernel's error for a bound socket into one of the errors above.
func stateError(call string, errno unix.Errno) error {
	switch errno {
	case 0:
		return nil
	case unix.ENETDOWN:
		return ErrDown
	case unix.ENXIO, unix.ENODEV:
		return ErrGone
	case unix.EINVAL: // from zero-copy drivers
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
		return fmt.Errorf("registering the UMEM: %w (raise ulimit -l, or grant CAP_IPC_LOCK)", err)
	}
	return fmt.Errorf("registering the UMEM: %w", err)
}

// explainBind describes an error of bind.
func explainBind(c *Config, err error) error {
	where := fmt.Sprintf("binding to queue %d of device index %d", c.Queue, c.Interface)
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
