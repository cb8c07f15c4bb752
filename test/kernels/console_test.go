// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"testing"
	"time"
)

func TestKernelLogLinesAreClassified(t *testing.T) {
	const stall, oops = faultStall, faultOops
	for _, tc := range []struct {
		line      string
		fault     fault
		processor int
		stuck     time.Duration
	}{
		{"[   40.514845] watchdog: BUG: soft lockup - CPU#0 stuck for 22s! [udp:239]", stall, 0, 22 * time.Second},
		{"[  376.686741] watchdog: BUG: soft lockup - CPU#13 stuck for 339s! [kworker/u4:1:25]", stall, 13, 339 * time.Second},
		{"unfinished [   40.514845] watchdog: BUG: soft lockup - CPU#1 stuck for 22s! [x:1]", stall, 1, 22 * time.Second},
		{"[    1.000000] watchdog: BUG: soft lockup - CPU#1 stuck for 99999999999999999999s!", stall, -1, 0}, // the number overflows: neither value is taken
		{"[    9.000000] NMI watchdog: Watchdog detected hard LOCKUP on cpu 1", stall, -1, 0},
		{"[  215.382126] rcu: INFO: rcu_preempt self-detected stall on CPU", stall, -1, 0},
		{"[  472.013195] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:", stall, -1, 0},
		{"[  460.999634] rcu: INFO: rcu_preempt detected expedited stalls on CPUs/tasks: { 1-.... }", stall, -1, 0},
		{"[  472.013195] rcu: rcu_preempt kthread starved for 7254 jiffies! g2313", stall, -1, 0},
		{"[  100.000000] BUG: workqueue lockup - pool cpus=0 node=0 flags=0x0 nice=0 stuck for 31s!", stall, -1, 0},
		{"[  242.000000] INFO: task tun:77 blocked for more than 120 seconds.", stall, -1, 0},

		{"[   12.000001] BUG: kernel NULL pointer dereference, address: 0000000000000008", oops, -1, 0},
		{"[   12.000001] BUG: unable to handle page fault for address: ffffc90000000000", oops, -1, 0},
		{"[   12.000001] kernel BUG at net/core/skbuff.c:110!", oops, -1, 0},
		{"[   12.000001] general protection fault, probably for non-canonical address 0xdead000000000122: 0000 [#1] SMP", oops, -1, 0},
		{"[   12.000001] BUG: KASAN: slab-use-after-free in tun_get_user+0x1/0x2", oops, -1, 0},
		{"[   56.979576] Oops: int3: 0000 [#1] SMP NOPTI", faultEmulator, -1, 0},
		{"[   56.979576] int3: 0000 [#1] SMP NOPTI", oops, -1, 0},
		{"[  261.346371] Kernel panic - not syncing: Fatal exception in interrupt", oops, -1, 0},
		{"[   12.000001] BUG: scheduling while atomic: udp/239/0x00000101", oops, -1, 0},
		{"log of a test [   12.000001] Oops: 0002 [#1] PREEMPT SMP", oops, -1, 0},

		{"[   12.000001] WARNING: CPU: 1 PID: 77 at net/core/dev.c:1", faultNone, -1, 0}, // not fatal: the kernel continues after a WARNING
		{"[   12.000001] RIP: 0010:__alloc_skb+0x1d/0x450", faultNone, -1, 0},
		{"[   12.000001] traps: x[1] general protection fault ip:1 sp:2 error:0", faultNone, -1, 0},
		{"[  515.365600] reboot: Power down", faultNone, -1, 0},
		{"Oops: printed by a test", faultNone, -1, 0},
		{"    x_test.go:1: watchdog: BUG: soft lockup - CPU#0 stuck for 22s!", faultNone, -1, 0},
		{"[   12.000001] Oops: \x16--- PASS: TestX (0.10s)", faultNone, -1, 0}, // go test's result line (\x16--- ), which may quote the kernel
		{"[   92.720944] RSP: 0018:ff79771dc0277cf0 EFLAGS: 4117f262", faultEmulator, -1, 0},
		{"[   92.720944] RSP: 002b:00003aacfdafd5b0 EFLAGS: 00000216 ORIG_RAX: 0000000000000141", faultNone, -1, 0},
		{"[   92.720944] RSP: 0018:ff79771dc0277cf0 EFLAGS: 003f7fd7", faultNone, -1, 0}, // all bits that exist
		{"EFLAGS: 4117f262", faultNone, -1, 0},
		{"", faultNone, -1, 0},
	} {
		c := parseKernelMessage(tc.line)
		if c.fault != tc.fault || c.processor != tc.processor || c.stuck != tc.stuck {
			t.Errorf("%q: fault %s, processor %d, stuck for %s; want %s, %d, %s",
				tc.line, c.fault, c.processor, c.stuck, tc.fault, tc.processor, tc.stuck)
		}
	}
}

func FuzzParseKernelMessage(f *testing.F) {
	f.Add("[   40.514845] watchdog: BUG: soft lockup - CPU#0 stuck for 22s! [udp:239]")
	f.Add("[   12.000001] Oops: 0002 [#1]\x1b[2J")
	f.Fuzz(func(t *testing.T, line string) {
		c := parseKernelMessage(line)
		if c.stuck < 0 || c.processor < -1 || c.text != printable(c.text) {
			t.Errorf("got %+v, want stuck at least 0, processor at least %v, text %v", c, -1, printable(c.text))
		}
	})
}
