// SPDX-License-Identifier: Apache-2.0

package adopt

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/datapath"
	"github.com/ropewalk/ropewalk/pkg/datapath/hook"
)

// pins is where a network namespace's devices have theirs: FS/ropewalk/spread/net-INODE/DEVICE. Names of devices are per
// namespace and the BPF file system is not. The inode of a namespace that is gone may be used again: what was left there
// is then defunct, and healed or detached as such.
type pins struct {
	fs, dir string
}

const netPrefix = "net-"

func pinsIn(fs string) (pins, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		return pins{}, fmt.Errorf("looking at the network namespace: %w", err)
	}
	return pins{fs, filepath.Join(fs, "ropewalk", "spread", fmt.Sprint(netPrefix, st.Ino))}, nil
}

// device is where a device's pins are. The BPF file system takes no dots, which names of VLAN devices have.
func (p pins) device(name string) string {
	return filepath.Join(p.dir, strings.ReplaceAll(url.PathEscape(name), ".", "%2E"))
}

// devices lists those that have pins.
func (p pins) devices() (names []string, err error) {
	entries, err := os.ReadDir(p.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing what is attached: %w", err)
	}
	for _, e := range entries {
		name, err := url.PathUnescape(e.Name())
		if err == nil && p.holds(e.Name()) {
			names = append(names, name)
		}
	}
	return names, nil
}

// holds tells whether any of a device's pins is in a directory, which may be somebody else's.
func (p pins) holds(dir string) bool {
	for _, pin := range []string{hook.Egress.String(), hook.Ingress.String(), hook.XDP.String(), qdiscPin, statePin} {
		if _, err := os.Lstat(filepath.Join(p.dir, dir, pin)); err == nil {
			return true
		}
	}
	return false
}

// What is pinned in a device's directory beside its hooks.
const (
	qdiscPin = "clsact"
	statePin = "state"
)

// state is where a device's maps are pinned.
func (p pins) state(device string) string { return filepath.Join(p.device(device), statePin) }

// handle numbers this package's filters where there is no tcx.
const handle = 1

// hook is a place on a device; index 0 stands for one that is gone.
func (p pins) hook(device string, index int, place hook.Place, kind hook.Kind) hook.Hook {
	name := "ropewalk_gather"
	if place == hook.Egress {
		name = "ropewalk_spread"
	}
	if place == hook.XDP {
		kind = hook.XDPNative
	}
	dir := p.device(device)
	return hook.Hook{
		Device: index, Place: place, Kind: kind, Name: name, Handle: handle,
		Pin: filepath.Join(dir, place.String()), QdiscPin: filepath.Join(dir, qdiscPin),
	}
}

// places are in the order in which programs go off: gather still understands the answers to what was spread.
func places() []hook.Place { return []hook.Place{hook.Egress, hook.Ingress, hook.XDP} }

// attachedTo returns the indices of the devices that a device's programs are attached to, whatever their names are now.
func (p pins) attachedTo(device string) (indices []int, err error) {
	index := deviceIndex(device)
	for _, place := range places() {
		st, err := p.hook(device, index, place, hook.Best).Status()
		if err != nil {
			return nil, err
		}
		if st.State == hook.Attached || st.State == hook.Elsewhere {
			indices = append(indices, st.Device)
		}
	}
	return indices, nil
}

// gathering returns the one of two hooks that gathers, and how it is.
func (p pins) gathering(device string, index int) (hook.Place, hook.Status, error) {
	ingress, err := p.hook(device, index, hook.Ingress, hook.Best).Status()
	if err != nil {
		return 0, hook.Status{}, err
	}
	xdp, err := p.hook(device, index, hook.XDP, hook.Best).Status()
	if err != nil {
		return 0, hook.Status{}, err
	}
	if ingress.State == hook.Detached || xdp.State == hook.Attached {
		return hook.XDP, xdp, nil
	}
	return hook.Ingress, ingress, nil
}

// present returns how a device's packets are gathered now and the gap of its flows, or zeros where nothing is attached.
func (p pins) present(device string, index int) (gather Gather, gap time.Duration, err error) {
	egress, err := p.hook(device, index, hook.Egress, hook.Best).Status()
	if err != nil || egress.State == hook.Detached {
		return "", 0, err
	}
	place, at, err := p.gathering(device, index)
	switch {
	case err != nil:
		return "", 0, err
	case at.State == hook.Detached:
		gather = GatherNone
	case place == hook.XDP:
		gather = GatherXDP
	default:
		gather = GatherTC
	}
	gap, err = datapath.ProgramGap(egress.Program)
	return gather, gap, err
}

// others returns the tunnels of all devices but those with that port, and the lanes of the one that has it.
func (p pins) others(port uint16) (others []datapath.Tunnel, own []uint16, err error) {
	devices, err := p.devices()
	if err != nil {
		return nil, own, err
	}
	for _, d := range devices {
		tunnels, err := p.tunnels(d)
		if err != nil {
			return nil, own, err
		}
		for _, t := range tunnels {
			if t.Port == port {
				own = t.Lanes
			} else {
				others = append(others, t)
			}
		}
	}
	return others, own, nil
}

// tunnels returns none where there is no state that this version understands.
func (p pins) tunnels(device string) ([]datapath.Tunnel, error) {
	s, err := datapath.OpenState(p.state(device))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return s.Tunnels()
}

// canonicalPorts returns those of the peers that a device's state has, by address.
func (p pins) canonicalPorts(cfg Config) map[netip.Addr]uint16 {
	s, err := datapath.OpenState(p.state(cfg.Device))
	if err != nil {
		return nil
	}
	defer s.Close()
	ports := map[netip.Addr]uint16{}
	_, peers, _ := read(s, cfg.Port)
	for _, peer := range peers {
		ports[peer.Endpoint.Addr()] = peer.Endpoint.Port()
	}
	return ports
}
