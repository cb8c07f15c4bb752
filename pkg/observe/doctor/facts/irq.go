// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// irqs lists the IRQs of a NIC's queues, without those for errors, link state and configuration.
func (s source) irqs(device string) ([]IRQ, error) {
	numbers, err := s.irqNumbers(device)
	if err != nil {
		return nil, err
	}
	text, err := s.text("proc/interrupts")
	if err != nil {
		return nil, err
	}
	names := parseInterrupts(text)
	var irqs []IRQ
	for _, n := range numbers {
		name, known := names[n]
		if !known || !isReceiveQueueIRQ(name) {
			continue
		}
		cpus, err := s.irqCPUs(n)
		if err != nil {
			return nil, err
		}
		irqs = append(irqs, IRQ{Number: n, Name: name, CPUs: cpus})
	}
	return irqs, nil
}

// irqNumbers finds the device's MSI vectors in its own sysfs directory, or for virtio in its PCI
// device's directory.
func (s source) irqNumbers(device string) ([]int, error) {
	target, err := fs.ReadLink(s.root, "sys/class/net/"+device)
	if err != nil {
		return nil, err
	}
	dir := path.Join("sys/class/net", target) // ../../devices/pci0000:00/0000:00:04.0/net/eth0
	for range 4 {
		names, err := s.names(path.Join(dir, "msi_irqs"))
		if err == nil {
			return integers(names), nil
		}
		dir = path.Dir(dir)
	}
	return nil, fmt.Errorf("finding the IRQs of %s (msi_irqs of the device and its parents in /sys): no such entry", device)
}

func integers(names []string) []int {
	var list []int
	for _, name := range names {
		if n, err := strconv.Atoi(name); err == nil {
			list = append(list, n)
		}
	}
	slices.Sort(list)
	return list
}

// parseInterrupts reads the names in /proc/interrupts (proc_interrupts(5)): " 38: 0 31587 PCI-MSIX-0000:00:03.0 1-edge virtio2-input.0".
func parseInterrupts(text string) map[int]string {
	names := map[int]string{}
	for line := range strings.Lines(text) {
		number, rest, _ := strings.Cut(line, ":")
		n, err := strconv.Atoi(strings.TrimSpace(number))
		fields := strings.Fields(rest)
		if err != nil || len(fields) == 0 {
			continue
		}
		names[n] = shorten(fields[len(fields)-1])
	}
	return names
}

// isReceiveQueueIRQ recognises the IRQ of a receive queue by the driver's name for it. Examples
// are virtio2-input.0, mlx5_comp0@pci:..., i40e-eth0-TxRx-0, eth0-Tx-Rx-0, gve-ntfy-blk.0 and
// eth0-rx-0.
func isReceiveQueueIRQ(name string) bool {
	name = strings.ToLower(name)
	for _, part := range []string{"input", "rx", "comp", "ntfy", "queue"} {
		if strings.Contains(name, part) {
			return true
		}
	}
	return false
}

func (s source) irqCPUs(n int) ([]int, error) {
	dir := fmt.Sprintf("proc/irq/%d/", n)
	cpus, err := s.cpus(dir + "effective_affinity_list")
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(cpus) == 0 {
		cpus, err = s.cpus(dir + "smp_affinity_list")
	}
	return cpus, err
}
