// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
)

// refuseOption makes the kernel refuse to set a socket option on this thread, as sandboxes do. The thread must be locked, and ends with the test.
func refuseOption(t *testing.T, option uint32) {
	t.Helper()
	const number, optionArgument = 0, 16 + 2*8 // offsets in struct seccomp_data
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: number},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 3, K: unix.SYS_SETSOCKOPT},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: optionArgument},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: option},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	expect.NoError(t, unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&filter)), 0, 0); err != nil {
		t.Skip("needs seccomp: ", err)
	}
}

func TestPortOpensWithoutHolder(t *testing.T) {
	for _, noIPv6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("NoIPv6 %v", noIPv6), func(t *testing.T) {
			requireNamespace(t)
			refuseOption(t, unix.SO_BINDTOIFINDEX)
			var log bytes.Buffer
			p := open(t, Config{Lanes: 3, NoIPv6: noIPv6, Log: slog.New(slog.NewTextHandler(&log, nil))})
			if !strings.Contains(log.String(), "SO_BINDTOIFINDEX") {
				t.Errorf("got log %q, want a warning", log.String())
			}
			openSource(t, p)
			expect.NoError(t, p.OpenGroup(1))
			expectAllLanesReceive(t, p)
			kept, err := p.Keep()
			expect.NoError(t, err)
			expect.NoError(t, p.Close())
			next := open(t, Config{Port: p.LocalPort(), Lanes: 3, Sockets: kept})
			expect.NoError(t, next.OpenGroup(1))
			expectAllLanesReceive(t, next)
		})
	}
}

func TestFailedGroupSocketIsClosed(t *testing.T) {
	requireNamespace(t)
	p := open(t, Config{Lanes: 2})
	fd := -1
	_, err := p.bindBeside(0, func(s *socket, port uint16) error {
		fd = s.fd
		expect.NoError(t, s.bindToGroup(port, 1))
		refuseOption(t, unix.SO_REUSEPORT)
		return nil
	})
	if _, open := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); !errors.Is(err, unix.EPERM) || !errors.Is(open, unix.EBADF) {
		t.Errorf("got error %v, want %v; the descriptor: %v, want %v", err, unix.EPERM, open, unix.EBADF)
	}
}
