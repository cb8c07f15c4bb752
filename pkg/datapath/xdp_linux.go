// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// loadXDP loads all of a specification, of which the named program is XDP, into objects. Where the kernel knows frames of
// several buffers (Linux 5.18), the program may be attached to devices that have them: it reads only the headers, which are
// in the first.
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
