// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// Steer is the program that chooses the TUN queue of an inner packet or train by packet.Fragments.FlowHash, which also selects the
// lane elsewhere. It is a socket filter for TUNSETSTEERINGEBPF. Its only state is the table of fragmented datagrams.
type Steer struct {
	program *ebpf.Program
}

// LoadSteer loads the program. It needs CAP_BPF, and before Linux 5.11 CAP_SYS_RESOURCE if RLIMIT_MEMLOCK is low. Without
// them errors.Is(err, os.ErrPermission).
func LoadSteer() (*Steer, error) {
	// If the limit cannot be raised, it may still be high enough. Otherwise the load fails.
	_ = rlimit.RemoveMemlock()
	var objects steerPrograms // which keep the map
	if err := loadSteerObjects(&objects, nil); err != nil {
		return nil, explainLoadError("steer", err)
	}
	return &Steer{program: objects.Steer}, nil
}

// FD is the program's descriptor, valid until Close.
func (s *Steer) FD() int { return s.program.FD() }

// Close closes the program. A device to which it is attached keeps it.
func (s *Steer) Close() error { return s.program.Close() }

// explainLoadError adds the missing requirement to the error of a failed load.
func explainLoadError(name string, err error) error {
	switch {
	case errors.Is(err, unix.EPERM): // the library's message suggests RLIMIT_MEMLOCK first
		return fmt.Errorf("loading the eBPF program %s: %w (needs CAP_BPF, before Linux 5.11 CAP_SYS_RESOURCE too, and in "+
			"a container a seccomp profile that allows bpf)", name, unix.EPERM)
	case errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("loading the eBPF program %s: %w (needs a kernel with CONFIG_BPF_SYSCALL)", name, err)
	case errors.As(err, new(*ebpf.VerifierError)): // for lack of either it returns EACCES, EINVAL or E2BIG
		return fmt.Errorf("loading the eBPF program %s: %w (needs Linux 5.10, and CAP_PERFMON)", name, err)
	}
	return fmt.Errorf("loading the eBPF program %s: %w", name, err)
}
