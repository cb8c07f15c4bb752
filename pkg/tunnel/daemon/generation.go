// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"
)

// kernelEvents is the multicast group of the kernel's own uevents (lib/kobject_uevent.c). udev sends to another one.
const kernelEvents = 1

// watchGeneration calls copied, from its own goroutine, when the hypervisor reports that this virtual machine was restored from a snapshot
// or cloned, until ctx ends. Recent kernels announce it by a uevent (drivers/virt/vmgenid.c), older ones tell user space nothing. The
// goroutine sleeps in between.
func watchGeneration(ctx context.Context, log *slog.Logger, copied func()) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return fmt.Errorf("opening a uevent socket: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: kernelEvents}); err != nil {
		return errors.Join(fmt.Errorf("binding a uevent socket: %w", err), unix.Close(fd))
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 1<<20) // for bursts; a lost event is logged
	events := os.NewFile(uintptr(fd), "uevent")
	context.AfterFunc(ctx, func() { _ = events.Close() }) // wakes Read
	go func() {
		event := make([]byte, 8<<10) // the kernel's are at most 2 KiB
		for {
			n, err := events.Read(event)
			switch {
			case errors.Is(err, unix.ENOBUFS):
				log.Warn("kernel events were lost, perhaps a new VM generation ID: if this machine was cloned, restart the interface to renew its session keys")
			case ctx.Err() != nil:
				return
			case err != nil:
				log.Warn("reading kernel events failed, this daemon no longer notices a clone of this machine: restart the interface after cloning", "error", err)
				return
			case isNewGeneration(event[:n]):
				copied()
			}
		}
	}()
	return nil
}

// isNewGeneration reports whether a uevent announces a new VM generation ID. Only the kernel and processes with CAP_NET_ADMIN can send it.
func isNewGeneration(event []byte) bool {
	header, fields, ok := bytes.Cut(event, []byte{0})
	if !ok || !bytes.HasPrefix(header, []byte("change@")) {
		return false
	}
	for field := range bytes.SplitSeq(fields, []byte{0}) {
		if string(field) == "NEW_VMGENID=1" {
			return true
		}
	}
	return false
}
