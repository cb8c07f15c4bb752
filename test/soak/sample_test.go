// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/ropewalk/ropewalk/test/expect"
)

// figures are the resources of one daemon.
type figures [len(resources)]int

// resource is one of the figures, with the growth that is no leak.
type resource struct {
	name  string
	slack int
}

// resources are those that a leak would let grow. The garbage collector decides about memory: a daemon holds up to twice its live heap.
var resources = [...]resource{
	{"resident MiB", 24},
	{"goroutines", 4},
	{"descriptors", 4},
	{"AF_XDP frame errors", 0},
}

// bpfSlack is how many eBPF programs and maps others on the machine may add.
const bpfSlack = 20

// sample is the state of both daemons after a cycle.
type sample struct {
	at   time.Duration // since the beginning
	a, b figures       // a is upgraded in each cycle, b never
	bpf  int           // eBPF programs and maps of the whole machine
}

// sample reads the figures of both daemons. Numbers that are still settling after a change are read again.
func (c *churn) sample() sample {
	c.Helper()
	s := sample{at: time.Since(c.began).Round(time.Second)}
	for d, f := range map[*daemon]*figures{c.a: &s.a, c.b: &s.b} {
		expect.EventuallyNoError(c, "the metrics of "+d.ifname, func() (err error) { // a new daemon serves them after the tunnel
			*f, err = d.settled()
			return err
		})
	}
	var err error
	s.bpf, err = bpfObjects()
	expect.NoError(c, err)
	return s
}

// bpfObjects counts the programs and maps in the kernel. Most have no descriptor: an interface, a socket or a program holds them.
func bpfObjects() (n int, err error) {
	for id := ebpf.ProgramID(0); err == nil; n++ {
		id, err = ebpf.ProgramGetNextID(id)
	}
	if !errors.Is(err, os.ErrNotExist) {
		return 0, fmt.Errorf("listing eBPF programs: %w", err)
	}
	err = nil
	for id := ebpf.MapID(0); err == nil; n++ {
		id, err = ebpf.MapGetNextID(id)
	}
	if !errors.Is(err, os.ErrNotExist) {
		return 0, fmt.Errorf("listing eBPF maps: %w", err)
	}
	return n - 2, nil // each listing ends with an error
}

// settled returns the figures of the daemon that are the same, except for memory, in two readings a second apart, or the last of three.
func (d *daemon) settled() (f figures, err error) {
	for range 3 {
		last := f
		if f, err = d.figures(); err != nil || slices.Equal(last[1:], f[1:]) {
			return f, err
		}
		time.Sleep(time.Second)
	}
	return f, nil
}

func (d *daemon) figures() (f figures, err error) {
	m, err := d.metrics()
	if err != nil {
		return f, err
	}
	f[0] = int(sum(m["process_resident_memory_bytes"])) >> 20
	f[1] = int(sum(m["go_goroutines"]))
	f[3] = int(sum(m["ropewalk_xdp_rejected_frames_total"]) + sum(m["ropewalk_xdp_frame_ownership_errors_total"]))
	f[2], err = d.descriptors()
	return f, err
}

// verdict returns the resources of which the daemons hold more at the end than in the beginning: medians of the second and the last
// quarter of the samples. In the first quarter buffers grow to their size.
func verdict(samples []sample) error {
	q := len(samples) / 4
	if q == 0 {
		return nil
	}
	of := func(s sample) int { return s.bpf }
	var errs []error
	if early, late := median(samples[q:2*q], of), median(samples[len(samples)-q:], of); late > early+bpfSlack {
		errs = append(errs, fmt.Errorf("the machine's eBPF programs and maps grew from %d to %d, want at most %d more", early, late, bpfSlack))
	}
	for i, r := range resources {
		for _, d := range []struct {
			name string
			of   func(sample) int
		}{{"upgraded", func(s sample) int { return s.a[i] }}, {"other", func(s sample) int { return s.b[i] }}} {
			early, late := median(samples[q:2*q], d.of), median(samples[len(samples)-q:], d.of)
			if late > early+r.slack {
				errs = append(errs, fmt.Errorf("%s of the %s daemon grew from %d to %d, want at most %d more", r.name, d.name, early, late, r.slack))
			}
		}
	}
	return errors.Join(errs...)
}

func median(samples []sample, of func(sample) int) int {
	var v []int
	for _, s := range samples {
		v = append(v, of(s))
	}
	slices.Sort(v)
	return v[len(v)/2]
}

// maxRows bounds the rows of a table.
const maxRows = 12

// table formats evenly spaced samples, the last among them, as Markdown. Each cell has the upgraded and the other daemon's figure.
func table(samples []sample) string {
	var b strings.Builder
	b.WriteString("| minute | cycles |")
	for _, r := range resources {
		fmt.Fprintf(&b, " %s |", r.name)
	}
	b.WriteString(" eBPF objects of the machine |\n|" + strings.Repeat(" ---: |", len(resources)+3) + "\n")
	rows := min(len(samples), maxRows)
	for row := range rows {
		i := (row + 1) * len(samples) / rows
		s := samples[i-1]
		fmt.Fprintf(&b, "| %.0f | %d |", s.at.Minutes(), i)
		for j := range resources {
			fmt.Fprintf(&b, " %d, %d |", s.a[j], s.b[j])
		}
		fmt.Fprintf(&b, " %d |\n", s.bpf)
	}
	return b.String()
}

func TestVerdictFindsGrowth(t *testing.T) {
	var flat, leak []sample
	for i := range 16 {
		flat = append(flat, sample{a: figures{30 + i%3, 20, 40 + i%2, 0}})
		leak = append(leak, sample{a: figures{30, 20, 40, 0}, b: figures{30, 20 + i, 40, 0}, bpf: 5 * i})
	}
	if err := verdict(flat); err != nil {
		t.Errorf("without a leak: %v", err)
	}
	err := verdict(leak)
	for _, want := range []string{"goroutines of the other daemon grew from 26 to 34", "programs and maps grew from 30 to 70"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
