// SPDX-License-Identifier: Apache-2.0

package autounderlay

import (
	"fmt"

	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// facts are what the choice between UDP sockets and AF_XDP hangs on, for one device.
type facts struct {
	device   string // the one that most peers are reached by, or that was asked for; empty: there is none
	noDevice error  // why
	peers    int    // addresses where peers are
	here     int    // of those, reached by the device
	inUse    bool   // by AF_XDP now
	driver   string
	mtu      int  // bytes
	known    bool // the kernel tells what the driver can do (Linux 6.3), in caps
	caps     xsk.Capabilities
	hashed   int   // among how many receive queues the device chooses by port; 0 if it does not tell
	cpus     []int // that the process may use
	strips   bool  // the device takes off the tags of VLANs that are upon it
}

// choice is what becomes of a mode, for a device.
type choice struct {
	xdp    bool
	mode   xsk.Mode
	reason string // for people, either way
}

const asConfigured = "as configured"

// bonding is the driver that says it runs XDP programs, has its parts run them, and then loses what they give to a socket: the
// kernel knows the socket's queue for one of the bond, and the frame's for one of the part.
const bonding = "bonding"

// ethernet is the length of an Ethernet header with one VLAN tag.
const ethernet = 18

// frameSize returns the smallest frame that packets of an MTU fit in, in bytes, or 0 for none.
func frameSize(mtu int) int {
	for _, size := range []int{2048, 4096} {
		if mtu+ethernet <= size-xsk.RxHeadroom {
			return size
		}
	}
	return 0
}

// reachesEnoughPeers tells whether the device leads to as many peers as make it worth while: half of them, and a quarter to go on with it, so
// that nobody who comes and goes has the way change each time.
func (f *facts) reachesEnoughPeers() bool {
	if f.inUse {
		return 4*f.here >= f.peers
	}
	return 2*f.here >= f.peers
}

// choose says which way data messages go. UDP sockets carry trains: one system call and one trip through the stack for up to
// 64 KiB. AF_XDP carries frames, and is ahead where a frame costs little: where the device itself reads and writes them
// (docs/performance.md). So auto wants zero-copy; what is asked for by name may copy.
func choose(mode config.UnderlayMode, f *facts) choice {
	switch {
	case mode == config.UnderlayUDP:
		return choice{reason: asConfigured}
	case f.device == "":
		return choice{reason: fmt.Sprintf("no device for AF_XDP: %v", f.noDevice)}
	case f.driver == bonding:
		return choice{reason: fmt.Sprintf("%s is a bond, and its parts have the queues", f.device)}
	case f.known && !f.caps.Native:
		return choice{reason: fmt.Sprintf("the driver of %s (%s) runs no XDP programs", f.device, f.driver)}
	case frameSize(f.mtu) == 0:
		return choice{reason: fmt.Sprintf("packets of up to %d bytes, the MTU of %s, do not fit in a frame", f.mtu, f.device)}
	case mode == config.UnderlayXDP && f.known && !f.caps.ZeroCopy:
		return choice{true, xsk.Copy, asConfigured}
	case mode == config.UnderlayXDP:
		return choice{true, xsk.Auto, asConfigured}
	case !f.known:
		return choice{reason: fmt.Sprintf("this kernel does not tell whether the driver of %s (%s) has zero-copy", f.device, f.driver)}
	case !f.caps.ZeroCopy:
		return choice{reason: fmt.Sprintf("the driver of %s (%s) would have each frame copied, and UDP sockets take trains", f.device, f.driver)}
	case !f.reachesEnoughPeers():
		return choice{reason: fmt.Sprintf("%d of %d peers are not reached by %s", f.peers-f.here, f.peers, f.device)}
	}
	return choice{true, xsk.ZeroCopy, fmt.Sprintf("the driver of %s (%s) has zero-copy", f.device, f.driver)}
}
