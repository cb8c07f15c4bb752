// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// Steer is the program that chooses the TUN queue of an inner packet or train by packet.FlowHash, the hash that all
// lanes follow. It is a socket filter for TUNSETSTEERINGEBPF, and keeps no state.
type Steer struct {
	program *ebpf.Program
}

// LoadSteer loads the program. It needs CAP_BPF, and before Linux 5.11 CAP_SYS_RESOURCE where RLIMIT_MEMLOCK is low;
// their lack satisfies errors.Is(err, os.ErrPermission).
func LoadSteer() (*Steer, error) {
	// A limit that cannot be lifted may still be high enough: the load tells.
	_ = rlimit.RemoveMemlock()
	var objects steerObjects
	if err := loadSteerObjects(&objects, nil); err != nil {
		return nil, explainLoad("steer", err)
	}
	return &Steer{program: objects.Steer}, nil
}

// FD is the program's descriptor, valid until Close.
func (s *Steer) FD() int { return s.program.FD() }

// Close gives the program back. A device that it was attached to keeps it.
func (s *Steer) Close() error { return s.program.Close() }

// SteerQueue returns the queue out of queues, which is at least one, that a device with Steer attached puts a packet
// on, given its packet.FlowHash. The driver keeps only 16 bits of the hash (tun_ebpf_select_queue of Linux).
func SteerQueue(hash uint32, queues int) int { return int(uint16(hash)) % queues }

// explainLoad says what is missing for a program to load.
func explainLoad(name string, err error) error {
	switch {
	case errors.Is(err, unix.EPERM): // the library's own words send the reader to RLIMIT_MEMLOCK first
		return fmt.Errorf("loading the eBPF program %s: %w (needs CAP_BPF, before Linux 5.11 CAP_SYS_RESOURCE too, and in "+
			"a container a seccomp profile that allows bpf)", name, unix.EPERM)
	case errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("loading the eBPF program %s: %w (needs a kernel with CONFIG_BPF_SYSCALL)", name, err)
	case errors.As(err, new(*ebpf.VerifierError)) && errors.Is(err, unix.EACCES): // its word for both
		return fmt.Errorf("loading the eBPF program %s: %w (needs Linux 5.10, and CAP_PERFMON)", name, err)
	case errors.As(err, new(*ebpf.VerifierError)):
		return fmt.Errorf("loading the eBPF program %s: %w (needs Linux 5.10)", name, err)
	}
	return fmt.Errorf("loading the eBPF program %s: %w", name, err)
}
