// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/observe/doctor/facts"
)

func queueChecks() []Check {
	return []Check{
		checkNICs("nic-irq-affinity", "IRQ affinity of the receive queues (smp_affinity_list)", evaluateAffinity,
			"queues whose IRQs go to one CPU work like a single queue"),
		check("irqbalance", "whether irqbalance runs", evaluateIrqbalance,
			"it moves IRQs away from the CPUs whose lanes process the packets"),
		checkNICs("nic-rps", "RPS (receive packet steering, rps_cpus)", evaluateRPS,
			"a single-queue NIC needs it to use several CPUs; with several queues it only adds another CPU hop per packet").fixable(),
		checkNICs("nic-xps", "XPS (transmit packet steering, xps_cpus)", evaluateXPS,
			"CPUs that share a transmit queue contend for its lock").fixable(),
	}
}

func evaluateAffinity(f *facts.Facts, n *facts.NIC, r *recorder) {
	irqs := n.IRQs
	switch {
	case n.Virtual:
		r.ok(n.Name, "virtual device without IRQs")
		return
	case irqs.Err != nil && receiveQueues(n) > 1:
		r.unknown(n.Name, irqs.Err)
		return
	case len(irqs.Value) < 2:
		r.ok(n.Name, "fewer than two queues have their own IRQ")
		return
	}
	reached := map[int]bool{}
	var numbers []string
	for _, q := range irqs.Value {
		numbers = append(numbers, strconv.Itoa(q.Number))
		for _, cpu := range q.CPUs {
			reached[cpu] = true
		}
	}
	cpus := max(len(f.CPU.Online.Value), 1)
	found := fmt.Sprintf("IRQs of %d queues go to %d of %d CPUs", len(irqs.Value), len(reached), cpus)
	if len(reached) < min(len(irqs.Value), cpus) {
		r.warn(n.Name, found, fmt.Sprintf("i=0; for irq in %s; do echo $((i++ %% %d)) > /proc/irq/$irq/smp_affinity_list; done",
			strings.Join(numbers, " "), cpus))
		return
	}
	r.ok(n.Name, "%s", found)
}

func evaluateIrqbalance(f *facts.Facts, r *recorder) {
	several := slices.ContainsFunc(f.NICs, func(n facts.NIC) bool { return len(n.IRQs.Value) > 1 })
	switch {
	case f.Irqbalance.Err != nil:
		r.unknown("", f.Irqbalance.Err)
	case f.Irqbalance.Value && several:
		r.warn("", "running", "systemctl disable --now irqbalance   # then see nic-irq-affinity")
	case f.Irqbalance.Value:
		r.ok("", "running; no device has several queue IRQs to move")
	default:
		r.ok("", "not running")
	}
}

func evaluateRPS(f *facts.Facts, n *facts.NIC, r *recorder) {
	if n.RPS.Err != nil {
		r.unknown(n.Name, n.RPS.Err)
		return
	}
	var on []string
	for _, q := range slices.Sorted(maps.Keys(n.RPS.Value)) {
		if len(n.RPS.Value[q]) > 0 {
			on = append(on, q)
		}
	}
	switch queues := receiveQueues(n); {
	case queues > 1 && len(on) > 0 && !n.Virtual:
		r.warn(n.Name, fmt.Sprintf("on for %s of %d queues", strings.Join(on, ", "), queues), "", rpsChanges(n, on, nil)...)
	case queues == 1 && len(on) == 0 && !n.Virtual && len(f.CPU.Online.Value) > 1:
		all := slices.Sorted(maps.Keys(n.RPS.Value))
		r.warn(n.Name, fmt.Sprintf("off: one queue, so 1 of %d CPUs processes all received packets", len(f.CPU.Online.Value)), "",
			rpsChanges(n, all, f.CPU.Online.Value)...)
	case len(on) > 0:
		r.ok(n.Name, "on for %s", strings.Join(on, ", "))
	default:
		r.ok(n.Name, "off")
	}
}

func rpsChanges(n *facts.NIC, queues []string, cpus []int) []Change {
	var changes []Change
	for _, q := range queues {
		changes = append(changes, Change{
			Kind: Sysfs, Target: "class/net/" + n.Name + "/queues/" + q + "/rps_cpus",
			Before: facts.Mask(n.RPS.Value[q]), After: facts.Mask(cpus),
		})
	}
	return changes
}

func evaluateXPS(f *facts.Facts, n *facts.NIC, r *recorder) {
	queues := slices.Sorted(maps.Keys(n.XPS.Value))
	cpus := f.CPU.Online.Value
	switch {
	case n.XPS.Err != nil && !errors.Is(n.XPS.Err, os.ErrNotExist):
		r.unknown(n.Name, n.XPS.Err)
	case len(queues) < 2 || n.Virtual:
		r.ok(n.Name, "fewer than two transmit queues")
	case len(queues) < len(cpus) || anyMask(n.XPS.Value):
		r.ok(n.Name, "driver default, %d transmit queues", len(queues))
	default:
		var changes []Change
		for i, cpu := range cpus {
			changes = append(changes, Change{
				Kind: Sysfs, Target: fmt.Sprintf("class/net/%s/queues/tx-%d/xps_cpus", n.Name, i), Before: "0", After: facts.Mask([]int{cpu}),
			})
		}
		r.warn(n.Name, fmt.Sprintf("off, with %d transmit queues for %d CPUs", len(queues), len(cpus)), "", changes...)
	}
}

func anyMask(masks map[string][]int) bool {
	for _, cpus := range masks {
		if len(cpus) > 0 {
			return true
		}
	}
	return false
}
