// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"errors"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// loadXDP loads a collection with the named XDP program into objects. If the kernel supports multi-buffer frames (Linux
// 5.18), the program declares that it does too. It reads only the headers, which are in the first buffer.
func loadXDP(spec *ebpf.CollectionSpec, program string, objects any, o *ebpf.CollectionOptions) error {
	xdp := spec.Programs[program]
	xdp.Flags |= unix.BPF_F_XDP_HAS_FRAGS
	err := spec.LoadAndAssign(objects, o)
	if errors.Is(err, unix.EINVAL) {
		xdp.Flags &^= unix.BPF_F_XDP_HAS_FRAGS
		err = spec.LoadAndAssign(objects, o)
	}
	return err
}
