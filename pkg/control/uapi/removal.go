// SPDX-License-Identifier: Apache-2.0

package uapi

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// AwaitRemoval waits until the socket's file has been removed or replaced, so that no client can connect any more. A file that was renamed is
// not removed. At the end of ctx it returns the cause. Other errors mean that a removal cannot be noticed. It sleeps in between.
func (l *Listener) AwaitRemoval(ctx context.Context) error {
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("creating an inotify instance: %w", err)
	}
	events := os.NewFile(uintptr(watch), "inotify")
	defer events.Close()
	// IN_ATTRIB is sent for a change of the number of links. The inode itself lives as long as the socket.
	if _, err := unix.InotifyAddWatch(watch, fmt.Sprintf("/proc/self/fd/%d", l.file.Fd()), unix.IN_ATTRIB); err != nil {
		return fmt.Errorf("watching %s: %w", l.path, err)
	}
	stop := context.AfterFunc(ctx, func() { events.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buffer := make([]byte, unix.SizeofInotifyEvent+unix.NAME_MAX+1)
	for {
		info, err := l.file.Stat()
		if err != nil {
			return fmt.Errorf("examining the control socket's file: %w", err)
		}
		if info.Sys().(*syscall.Stat_t).Nlink == 0 {
			return nil
		}
		if _, err := events.Read(buffer); ctx.Err() != nil {
			return context.Cause(ctx)
		} else if err != nil {
			return fmt.Errorf("reading inotify events: %w", err)
		}
	}
}
