// SPDX-License-Identifier: Apache-2.0

package host

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/ropewalk/ropewalk/pkg/observe/top"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
)

// routeCacheTime is how long the devices that lead to the peers are taken to be the same.
const routeCacheTime = 10 * time.Second

// maxDestinations limits the route lookups: most peers share a device.
const maxDestinations = 16

// Reader reads the host's counters. It is safe for concurrent use.
type Reader struct {
	root string // file system root: "/" except in tests

	mu       sync.Mutex
	devices  []string
	foundAt  time.Time
	foundFor routeKey
}

// New returns a Reader of this host.
func New() *Reader { return &Reader{root: "/"} }

// routeKey is the key of the cached devices.
type routeKey struct {
	tunnel string
	mark   uint32
	peers  int
}

// Read returns the counters of all CPUs, and of the queues of the NICs on the routes to a tunnel's endpoints. mark is the
// tunnel's firewall mark.
func (r *Reader) Read(tunnel string, endpoints []config.Endpoint, mark uint32) top.HostCounters {
	return top.HostCounters{Cores: r.cores(), Queues: r.queues(r.nics(tunnel, endpoints, mark))}
}

// nics caches the devices for routeCacheTime: routes seldom change, and there may be many peers.
func (r *Reader) nics(tunnel string, endpoints []config.Endpoint, mark uint32) []string {
	want := routeKey{tunnel, mark, len(endpoints)}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.foundAt.IsZero() || time.Since(r.foundAt) > routeCacheTime || r.foundFor != want {
		r.devices, r.foundAt, r.foundFor = r.find(tunnel, endpoints, mark), time.Now(), want
	}
	return r.devices
}

func (r *Reader) cores() []top.CoreCounters {
	cores := parseStat(r.text("proc/stat"))
	rx := parseSoftIRQs(r.text("proc/softirqs"), "NET_RX")
	for i := range cores {
		cores[i].NetRx = rx[cores[i].CPU]
	}
	return cores
}

// queues returns the queues with driver counters or with IRQs.
func (r *Reader) queues(devices []string) []top.QueueCounters {
	if len(devices) == 0 {
		return nil
	}
	interrupts := parseInterrupts(r.text("proc/interrupts"))
	var all []top.QueueCounters
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
	slices.SortFunc(all, func(a, b top.QueueCounters) int {
		return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(a.Queue, b.Queue))
	})
	return all
}

func at(queues map[int]*top.QueueCounters, queue int) *top.QueueCounters {
	if queues[queue] == nil {
		queues[queue] = &top.QueueCounters{}
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

// text returns a file's content, "" if it cannot be read.
func (r *Reader) text(path string) string {
	b, err := os.ReadFile(filepath.Join(r.root, path))
	if err != nil {
		return ""
	}
	return string(b)
}

// Sample returns a sample of a device's status and statistics, with the host's counters for the routes to its peers.
func (r *Reader) Sample(status *config.Status, stats device.Stats) top.Sample {
	now := time.Now()
	var endpoints []config.Endpoint
	for i := range status.Peers {
		if to := status.Peers[i].Endpoint; to.AddrPort.IsValid() {
			endpoints = append(endpoints, to)
		}
	}
	return top.SampleOf(status, stats, r.Read(status.Name, endpoints, status.FwMark), now)
}
