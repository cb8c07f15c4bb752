// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// setCongestion selects the congestion control of a connection, unless name is empty.
func setCongestion(conn *net.TCPConn, name string) error {
	if name == "" {
		return nil
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, name)
	})
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("selecting the congestion control %s: %w", name, err)
	}
	return nil
}

// transmitted returns the payload that a connection has put on the wire, and the part of it that was sent again. Both are 0
// where the kernel does not say (before Linux 4.19).
func transmitted(conn *net.TCPConn) (all, again uint64) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, 0
	}
	_ = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			all, again = info.Bytes_sent, info.Bytes_retrans
		}
	})
	return all, again
}
