// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/test/expect"
)

// awaitSyscall waits until a thread of this process blocks in the given system call.
func awaitSyscall(t *testing.T, tid, number int) {
	t.Helper()
	path := fmt.Sprintf("/proc/self/task/%d/syscall", tid)
	expect.Eventually(t, fmt.Sprintf("thread %d blocks in system call %d", tid, number), func() bool {
		state, err := os.ReadFile(path)
		if err != nil {
			t.Skipf("needs %s: %v", path, err)
		}
		return strings.HasPrefix(string(state), fmt.Sprint(number, " "))
	})
}

// TestCloseWakesBlockedReceiver tests shutdown(2) on an unconnected socket. It returns ENOTCONN, but must wake the
// receiver.
func TestCloseWakesBlockedReceiver(t *testing.T) {
	for _, c := range []Config{{}, {NoIPv6: true}, {BusyPoll: true}} {
		p := open(t, c)
		tid, result := make(chan int), make(chan error, 1)
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			tid <- unix.Gettid()
			_, err := p.Lane(0).Recv([]underlay.Datagrams{{Buf: make([]byte, 65535)}})
			result <- err
		}()
		awaitSyscall(t, <-tid, unix.SYS_PPOLL)
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-result; !errors.Is(err, net.ErrClosed) {
			t.Errorf("Recv returned %v", err)
		}
	}
}

// TestCloseEndsWaitForSendBuffer polls a full send buffer without a timeout. A poll that goes on would keep the port bound.
func TestCloseEndsWaitForSendBuffer(t *testing.T) {
	for group := range 2 {
		t.Run(fmt.Sprint("group ", group), func(t *testing.T) {
			slowDevice(t)
			p := open(t, Config{SendBuffer: 20000})
			expect.NoError(t, p.OpenGroup(1))
			to := behindSlowDevice(false)
			lane := p.Lane(0)
			full := []underlay.Run{small(&to, 0, group)}
			for lane.Send(full) == 0 {
			}
			tid, result := make(chan int), make(chan error, 1)
			go func() {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				if !lane.BeginWait() {
					t.Error("the port is closed already")
				}
				tid <- unix.Gettid()
				_, err := unix.Ppoll([]unix.PollFd{{Fd: int32(lane.SendFD(&full[0])), Events: unix.POLLOUT}}, nil, nil)
				lane.EndWait()
				result <- err
			}()
			awaitSyscall(t, <-tid, unix.SYS_PPOLL)
			expect.NoError(t, p.Close())
			expect.NoError(t, <-result)
			if lane.BeginWait() {
				t.Error("a closed port can be waited for")
			}
			open(t, Config{Port: p.LocalPort()})
		})
	}
}
