// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"regexp"
	"strconv"
	"strings"
	"time"
)

// fault is what a line of the kernel's log says about the machine.
type fault int

const (
	faultNone  fault = iota
	faultStall       // a processor or a task did not get on: under emulation the host may be to blame
	faultOops        // the kernel found itself broken: never the host's doing
)

// complaint is one line in which the kernel complains.
type complaint struct {
	fault     fault
	text      string        // without the time stamp
	processor int           // which one is stuck, -1 where the line does not say
	stuck     time.Duration // for how long, in the machine's time; 0 where the line does not say
}

// printk starts a line of the kernel's log: the seconds since boot. Such a line may stand behind what a program left
// unfinished on the console.
var printk = regexp.MustCompile(`\[ *[0-9]+\.[0-9]{6}\] (.*)$`)

var softLockup = regexp.MustCompile(`soft lockup - CPU#([0-9]+) stuck for ([0-9]+)s`)

// Texts of kernel/watchdog.c, kernel/rcu/tree_stall.h, tree_exp.h, kernel/workqueue.c and kernel/hung_task.c.
var stallTexts = regexp.MustCompile(`soft lockup - CPU#|hard LOCKUP|rcu.*(self-)?detected (expedited )?stall|` +
	`rcu.* kthread starved for|BUG: workqueue lockup|INFO: task .* blocked for more than`)

// Texts of die() and the page fault handler of x86, lib/bug.c, mm/kasan/report.c, kernel/panic.c and what else starts
// with "BUG: ". A WARNING is none: the kernel goes on, as designed.
var oopsTexts = regexp.MustCompile(`^(BUG: |kernel BUG at |Oops|general protection|double fault|stack segment|` +
	`invalid opcode|divide error|int3: |traps: PANIC|Kernel panic|(list_add|list_del) corruption|stack-protector: )|KASAN: |KFENCE: `)

// readComplaint reads one line of the console. Lines of tests are none, whatever they quote.
func readComplaint(line string) complaint {
	c := complaint{processor: -1}
	m := printk.FindStringSubmatch(line)
	if m == nil || isTestLine(line) {
		return c
	}
	c.text = strings.TrimSpace(printable(m[1]))
	switch {
	case stallTexts.MatchString(c.text):
		c.fault = faultStall
		c.processor, c.stuck = stuckProcessor(c.text)
	case oopsTexts.MatchString(c.text):
		c.fault = faultOops
	}
	return c
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
