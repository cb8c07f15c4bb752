// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/test/expect"
)

// TestFlapsLeaveNoMemory sets an interface down and up many times, and sends. The daemon must give
// back the memory that each new port takes, 2.3 times the first memory after 60 flaps.
func TestFlapsLeaveNoMemory(t *testing.T) {
	requireTUN(t)
	t.Parallel()
	needRopewalk(t)
	var d *daemon
	manyLanes := implementation{name: ropewalk.name, start: func(t *testing.T, h *host, ifname string) (stop func() error) {
		t.Helper()
		d, stop = launch(t, h, nil, ropewalkBinary.Need(t), "run", "--lanes", "16", ifname)
		return stop
	}}
	l := newLab(t, pairing{manyLanes, ropewalk}, false)
	l.start(t)
	serveEcho(t, l.right.host)
	const flaps = 60
	for range flaps {
		exchange(t, l.left, l.right.inner4.Addr(), 100) // each in a flow of its own, so that most lanes have worked
	}
	before := max(d.resident(t), someLanes)
	link, err := l.left.host.nl.LinkByName(l.left.ifname)
	expect.NoError(t, err)
	for range flaps {
		expect.NoError(t, l.left.host.nl.LinkSetDown(link))
		expect.NoError(t, l.left.host.nl.LinkSetUp(link))
		exchange(t, l.left, l.right.inner4.Addr(), 100) // until then the daemon may not know of it
	}
	after := d.resident(t)
	t.Logf("%d kB before, %d kB after the flaps", before, after)
	expect.EventuallyNoError(t, "the daemon to give memory back", func() error {
		if n := d.resident(t); n > before*18/10 {
			return fmt.Errorf("%d kB resident, %d before the flaps and %d after them", n, before, after)
		}
		return nil
	})
}

// someLanes is in kB. A daemon takes less before the flaps if a busy machine has let few of its lanes work, and more afterwards.
const someLanes = 36 << 10

// resident returns the size of the daemon's memory in kB.
func (d *daemon) resident(t *testing.T) (kB int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.cmd.Process.Pid))
	expect.NoError(t, err)
	_, text2, _ := strings.Cut(string(text), "VmRSS:")
	_, err = fmt.Sscan(text2, &kB)
	expect.NoError(t, err)
	return kB
}
