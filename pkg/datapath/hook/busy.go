// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"fmt"

	"github.com/cilium/ebpf"
)

// BusyError says that somebody else's program holds a place that takes but one.
type BusyError struct {
	Device  int
	Place   Place
	Program ebpf.ProgramID // zero if unknown
	Name    string         // the program's or the filter's, empty if unknown
}

func (e *BusyError) Error() string {
	who := "another program"
	if e.Program != 0 {
		who = fmt.Sprintf("program %d", e.Program)
	}
	if e.Name != "" {
		who += fmt.Sprintf(" (%s)", e.Name)
	}
	what := fmt.Sprintf("%s already holds the %s hook", who, e.Place)
	if e.Dispatcher() {
		what += "; it is the dispatcher by which libxdp runs several programs, and joining those would mean to put another in " +
			"its place, which is not done: `xdp-loader status` lists them, `xdp-loader unload` makes room"
	}
	return what
}

// dispatcherName is that of libxdp's dispatcher (lib/libxdp/protocol.org of xdp-tools), as far as the kernel keeps it.
const dispatcherName = "xdp_dispatcher"

// Dispatcher tells whether the program in the way is libxdp's dispatcher, which calls the programs of all that go by its
// convention. It is not joined: how many it calls is fixed when it is loaded, and the kernel removes the functions that
// are left over, so that one more program takes a new dispatcher with all the others' programs attached to it again, in
// place of the old one: under libxdp's lock, with its pins. That is replacing what others own. Programs attached here are
// safe from libxdp in turn: links do not let themselves be replaced.
func (e *BusyError) Dispatcher() bool { return e.Place == XDP && e.Name == dispatcherName }
