// SPDX-License-Identifier: Apache-2.0

package host

import (
	"strconv"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/observe/top"
)

// maxCPU limits parsed CPU numbers.
const maxCPU = 1 << 13

// parseStat reads the lines "cpuN user nice system idle iowait irq softirq steal guest guest_nice" of proc_stat(5). Idle and
// iowait are not busy, steal belongs to other guests, and user includes guest.
func parseStat(text string) []top.CoreCounters {
	var cores []top.CoreCounters
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 8 || len(f[0]) == len("cpu") {
			continue
		}
		cpu, ok := cpuNumber(f[0], "cpu")
		if !ok {
			continue
		}
		var t [8]uint64
		for i := range min(len(f)-1, len(t)) {
			t[i], _ = strconv.ParseUint(f[i+1], 10, 62)
		}
		c := top.CoreCounters{CPU: cpu, Busy: t[0] + t[1] + t[2] + t[5] + t[6], SoftIRQ: t[6]}
		c.Total = c.Busy + t[3] + t[4] + t[7]
		cores = append(cores, c)
	}
	return cores
}

// cpuNumber reads "cpu12" or "CPU12".
func cpuNumber(s, prefix string) (int, bool) {
	digits, ok := strings.CutPrefix(s, prefix)
	n, err := strconv.Atoi(digits)
	return n, ok && err == nil && n >= 0 && n < maxCPU
}

// header reads the CPU numbers of the columns of /proc/interrupts and /proc/softirqs. Offline CPUs have no column.
func header(text string) (cpus []int, rest string) {
	first, rest, _ := strings.Cut(text, "\n")
	for _, f := range strings.Fields(first) {
		if n, ok := cpuNumber(f, "CPU"); ok {
			cpus = append(cpus, n)
		}
	}
	return cpus, rest
}

// parseSoftIRQs reads one kind's counts by CPU: "NET_RX:  161287384  157443160".
func parseSoftIRQs(text, kind string) map[int]uint64 {
	cpus, rest := header(text)
	for line := range strings.Lines(rest) {
		name, counts, ok := strings.Cut(strings.TrimSpace(line), ":")
		if ok && name == kind {
			counted, _ := perCPU(cpus, strings.Fields(counts))
			return counted
		}
	}
	return nil
}

// perCPU reads one count per CPU and returns the remaining fields.
func perCPU(cpus []int, fields []string) (map[int]uint64, []string) {
	counts := make(map[int]uint64, len(cpus))
	for i, cpu := range cpus {
		if i >= len(fields) {
			return counts, nil
		}
		n, err := strconv.ParseUint(fields[i], 10, 64)
		if err != nil {
			return counts, fields[i:]
		}
		counts[cpu] = n
	}
	return counts, fields[min(len(cpus), len(fields)):]
}

// interrupt is a line of /proc/interrupts.
type interrupt struct {
	name   string
	perCPU map[int]uint64
}

// parseInterrupts reads the numbered ones: " 38: 0 31587 PCI-MSIX-0000:00:03.0 1-edge virtio2-input.0".
func parseInterrupts(text string) map[int]interrupt {
	cpus, rest := header(text)
	all := map[int]interrupt{}
	for line := range strings.Lines(rest) {
		number, counts, ok := strings.Cut(line, ":")
		n, err := strconv.Atoi(strings.TrimSpace(number))
		if !ok || err != nil {
			continue
		}
		counted, words := perCPU(cpus, strings.Fields(counts))
		if len(words) > 0 {
			all[n] = interrupt{words[len(words)-1], counted}
		}
	}
	return all
}

// queueOf parses the queue number in the name of a receive IRQ: virtio2-input.0, mlx5_comp0@pci:0000:08:00.0, i40e-eth0-TxRx-0, eth0-rx-0,
// ens5-Tx-Rx-0, gve-ntfy-blk.0. Other names have none.
func queueOf(name string) (int, bool) {
	name, _, _ = strings.Cut(strings.ToLower(name), "@")
	digits := len(name)
	for digits > 0 && name[digits-1] >= '0' && name[digits-1] <= '9' {
		digits--
	}
	n, err := strconv.Atoi(name[digits:])
	if err != nil || n >= maxQueue {
		return 0, false
	}
	for _, part := range []string{"input", "rx", "comp", "ntfy", "queue"} {
		if strings.Contains(name[:digits], part) {
			return n, true
		}
	}
	return 0, false
}
