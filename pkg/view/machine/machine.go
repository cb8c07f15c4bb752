// SPDX-License-Identifier: Apache-2.0

// Package machine reads what the host counts of its CPUs and of the queues of NICs: /proc/stat, /proc/softirqs,
// /proc/interrupts, and a driver's own statistics over ethtool. What a kernel, a driver or a container does not tell is
// left out: nothing here is an error.
package machine

import (
	"cmp"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/ropewalk/ropewalk/pkg/view"
)

// routesKept is how long the devices that lead to the peers are taken to be the same.
const routesKept = 10 * time.Second

// maxDestinations bounds how many peers are asked for their route: most share a device.
const maxDestinations = 16

// Reader reads the machine. It may be used by several goroutines at once.
type Reader struct {
	root string // of the file system: "/" but in tests

	mu      sync.Mutex
	devices []string
	asked   time.Time
	asking  destinations
}

// New returns a Reader of this machine.
func New() *Reader { return &Reader{root: "/"} }

// destinations are what devices are looked for.
type destinations struct {
	tunnel string
	mark   uint32
	peers  int
}

// Read returns the counters of all CPUs, and of the queues of the NICs that lead to the endpoints of a tunnel with the
// firewall mark.
func (r *Reader) Read(tunnel string, endpoints []netip.Addr, mark uint32) view.Machine {
	return view.Machine{Cores: r.cores(), Queues: r.queues(r.nics(tunnel, endpoints, mark))}
}

// nics remembers what it found for a while: routes seldom change, and there may be many peers.
func (r *Reader) nics(tunnel string, endpoints []netip.Addr, mark uint32) []string {
	want := destinations{tunnel, mark, len(endpoints)}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asked.IsZero() || time.Since(r.asked) > routesKept || r.asking != want {
		r.devices, r.asked, r.asking = r.find(tunnel, endpoints, mark), time.Now(), want
	}
	return r.devices
}

func (r *Reader) cores() []view.CoreCounters {
	cores := parseStat(r.text("proc/stat"))
	rx := parseSoftIRQs(r.text("proc/softirqs"), "NET_RX")
	for i := range cores {
		cores[i].NetRx = rx[cores[i].CPU]
	}
	return cores
}

// queues are those that the driver counts, with their interrupts, and those that only interrupts tell of.
func (r *Reader) queues(devices []string) []view.QueueCounters {
	if len(devices) == 0 {
		return nil
	}
	interrupts := parseInterrupts(r.text("proc/interrupts"))
	var all []view.QueueCounters
	for _, device := range devices {
		byQueue := countedQueues(device)
		for _, n := range r.vectors(device) {
			irq, known := interrupts[n]
			queue, ofQueue := queueOf(irq.name)
			if !known || !ofQueue {
				continue
			}
			q := at(byQueue, queue)
			q.Interrupts = add(q.Interrupts, irq.perCPU)
		}
		for queue, q := range byQueue {
			q.Device, q.Queue = device, queue
			all = append(all, *q)
		}
	}
	slices.SortFunc(all, func(a, b view.QueueCounters) int {
		return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(a.Queue, b.Queue))
	})
	return all
}

func at(queues map[int]*view.QueueCounters, queue int) *view.QueueCounters {
	if queues[queue] == nil {
		queues[queue] = &view.QueueCounters{}
	}
	return queues[queue]
}

func add(sum, more map[int]uint64) map[int]uint64 {
	if sum == nil {
		return more
	}
	for cpu, n := range more {
		sum[cpu] += n
	}
	return sum
}

// text is "" for a file that cannot be read.
func (r *Reader) text(path string) string {
	b, err := os.ReadFile(filepath.Join(r.root, path))
	if err != nil {
		return ""
	}
	return string(b)
}
