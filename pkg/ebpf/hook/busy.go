// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"fmt"

	"github.com/cilium/ebpf"
)

// BusyError is returned if another program occupies an attach point that takes only one program.
type BusyError struct {
	AttachPoint AttachPoint
	Program     ebpf.ProgramID // zero if unknown
	Name        string         // the program's or the filter's, empty if unknown
}

func (e *BusyError) Error() string {
	who := "another program"
	if e.Program != 0 {
		who = fmt.Sprintf("program %d", e.Program)
	}
	if e.Name != "" {
		who += fmt.Sprintf(" (%s)", e.Name)
	}
	text := fmt.Sprintf("%s is already attached to the %s hook", who, e.AttachPoint)
	if e.Dispatcher() {
		text += "; it is libxdp's dispatcher, which runs several programs and is not replaced: `xdp-loader status` lists " +
			"them, `xdp-loader unload` removes them"
	}
	return text
}

// dispatcherName is the name of libxdp's dispatcher (lib/libxdp/protocol.org of xdp-tools), truncated as in the kernel.
const dispatcherName = "xdp_dispatcher"

// Dispatcher reports whether the other program is libxdp's dispatcher, which calls several XDP programs in turn. This
// package does not add a program to it. The number of programs is fixed when a dispatcher is loaded, and the kernel removes
// its unused functions. One more program needs a new dispatcher to which all the others are attached again, under libxdp's
// lock and with its pins. That would replace programs of other owners. In turn, libxdp cannot replace programs attached
// here: a link is not replaced by another attachment.
func (e *BusyError) Dispatcher() bool { return e.AttachPoint == XDP && e.Name == dispatcherName }
