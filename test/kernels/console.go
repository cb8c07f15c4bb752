// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"regexp"
	"strconv"
	"strings"
	"time"
)

// fault classifies a line of the kernel log.
type fault int

const (
	faultNone     fault = iota
	faultStall          // a processor or task makes no progress; under emulation a busy host can cause it
	faultOops           // a kernel bug, which a busy host cannot cause
	faultEmulator       // what no processor can do: a bug of the emulator
)

func (f fault) String() string {
	return [...]string{faultNone: "none", faultStall: "stall", faultOops: "oops", faultEmulator: "emulator"}[f]
}

// kernelMessage is one line of the kernel log, classified.
type kernelMessage struct {
	fault     fault
	text      string        // without the time stamp
	processor int           // the stuck processor, or -1
	stuck     time.Duration // how long it is stuck by the machine's clock, or 0
}

// printk matches a line of the kernel log, which starts with the seconds since boot. It may follow a program's unfinished line on the
// console.
var printk = regexp.MustCompile(`\[ *[0-9]+\.[0-9]{6}\] (.*)$`)

var softLockup = regexp.MustCompile(`soft lockup - CPU#([0-9]+) stuck for ([0-9]+)s`)

// stallMessages matches messages of kernel/watchdog.c, kernel/rcu/tree_stall.h, tree_exp.h, kernel/workqueue.c and kernel/hung_task.c.
var stallMessages = regexp.MustCompile(`soft lockup - CPU#|hard LOCKUP|rcu.*(self-)?detected (expedited )?stall|` +
	`rcu.* kthread starved for|BUG: workqueue lockup|INFO: task .* blocked for more than`)

// oopsMessages matches messages of die() and the page fault handler of x86, lib/bug.c,
// mm/kasan/report.c and kernel/panic.c. It also matches all others that start with "BUG: ". A
// WARNING is not included, because the kernel continues after it.
var oopsMessages = regexp.MustCompile(`^(BUG: |kernel BUG at |Oops|general protection|double fault|stack segment|` +
	`invalid opcode|divide error|int3: |traps: PANIC|Kernel panic|(list_add|list_del) corruption|stack-protector: )|KASAN: |KFENCE: `)

// parseKernelMessage classifies one line of the console. Result lines of tests have faultNone even if they quote the kernel.
func parseKernelMessage(line string) kernelMessage {
	c := kernelMessage{processor: -1}
	m := printk.FindStringSubmatch(line)
	if m == nil || isTestLine(line) {
		return c
	}
	c.text = strings.TrimSpace(printable(m[1]))
	switch {
	case strings.HasPrefix(c.text, emulatorOops):
		c.fault = faultEmulator
	case stallMessages.MatchString(c.text):
		c.fault = faultStall
		c.processor, c.stuck = stuckProcessor(c.text)
	case oopsMessages.MatchString(c.text):
		c.fault = faultOops
	case hasReservedFlags(c.text):
		c.fault = faultEmulator
	}
	return c
}

var eflags = regexp.MustCompile(`\bEFLAGS: ([0-9a-f]{8})$`)

// emulatorOops is an oops for which nothing but the emulator can be blamed. The kernel patches its
// own code by way of a breakpoint. The breakpoint's handler knows every place that is being
// patched (arch/x86/kernel/alternative.c). QEMU was seen to execute such a breakpoint in
// bpf_dispatcher_xdp_func after the patch was complete. It ran a translation that it had not
// discarded yet.
const emulatorOops = "Oops: int3:"

// reservedFlags are the bits of EFLAGS that are always 0 (Intel SDM, volume 1, figure 3-8).
const reservedFlags = 0xffc0_8028

// hasReservedFlags reports whether a line of a register dump has an impossible EFLAGS. QEMU's emulation of a processor was seen to put
// another register into it, which ended in a double fault.
func hasReservedFlags(text string) bool {
	m := eflags.FindStringSubmatch(text)
	if m == nil {
		return false
	}
	flags, err := strconv.ParseUint(m[1], 16, 32)
	return err == nil && flags&reservedFlags != 0
}

func stuckProcessor(text string) (int, time.Duration) {
	m := softLockup.FindStringSubmatch(text)
	if m == nil {
		return -1, 0
	}
	processor, errP := strconv.Atoi(m[1])
	seconds, errS := strconv.ParseInt(m[2], 10, 32)
	if errP != nil || errS != nil {
		return -1, 0
	}
	return processor, time.Duration(seconds) * time.Second
}
