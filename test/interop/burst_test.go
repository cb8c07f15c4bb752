// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
)

// TestBurstOfSinglePacketsFitsTUNQueue sends packets while the daemon gets no CPU time. A tunnel inside, or forwarded traffic, sends as many
// without trains. Those that find the queue full are shown.
func TestBurstOfSinglePacketsFitsTUNQueue(t *testing.T) {
	requireTUN(t)
	t.Parallel()
	needRopewalk(t)
	var d *daemon
	oneLane := implementation{name: ropewalk.name, start: func(t *testing.T, h *host, ifname string) (stop func() error) {
		t.Helper()
		d, stop = launch(t, h, nil, ropewalkBinary.Need(t), "run", "--lanes", "1", ifname)
		return stop
	}}
	l := newLab(t, pairing{oneLane, ropewalk}, false)
	l.left.start(t, l.peerOf(l.left))
	for _, burst := range []struct {
		packets int
		fits    bool
	}{{3000, true}, {6000, false}} {
		expect.NoError(t, d.cmd.Process.Signal(unix.SIGSTOP))
		expect.Eventually(t, "all threads of the daemon to stop", func() bool { return d.isStopped(t) })
		c, err := dialUDP(l.left.host, netip.AddrPortFrom(l.right.inner4.Addr(), sinkPort))
		expect.NoError(t, err)
		for range burst.packets {
			_, err := c.Write(make([]byte, 100))
			expect.NoError(t, err)
		}
		expect.NoError(t, c.Close())
		expect.NoError(t, d.cmd.Process.Signal(unix.SIGCONT))
		link, err := l.left.host.nl.LinkByName(l.left.ifname)
		expect.NoError(t, err)
		n := link.Attrs().Statistics.TxDropped
		if (n == 0) != burst.fits {
			t.Errorf("the kernel has dropped %d of %d packets", n, burst.packets)
		}
		shown := strings.Contains(l.left.showLanes(t), fmt.Sprintf("%d tx_tun_queue", n))
		if shown == burst.fits {
			t.Errorf("%d dropped packets: shown is %t", n, shown)
		}
	}
}

// isStopped reports whether a signal has stopped each thread of the daemon.
func (d *daemon) isStopped(t *testing.T) bool {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", d.cmd.Process.Pid))
	expect.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // the thread has ended
		}
		expect.NoError(t, err)
		if state := text[bytes.LastIndexByte(text, ')')+2]; state != 'T' {
			return false
		}
	}
	return len(files) > 0
}
