// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/ebpf/hook"
	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
)

// pins is the directory with the pins of a network namespace (hook.NamespaceDir), in which each
// device has one. Old pins of another namespace with the same inode are repaired or detached.
type pins struct {
	fs, dir string
}

func pinsIn(fs string) (pins, error) {
	dir, err := hook.NamespaceDir(fs, "spread")
	return pins{fs, dir}, err
}

// device returns the directory of a device's pins. The BPF file system allows no dots, which VLAN device names have.
func (p pins) device(name string) string {
	return filepath.Join(p.dir, strings.ReplaceAll(url.PathEscape(name), ".", "%2E"))
}

// devices returns the names of the devices that have pins.
func (p pins) devices() (names []string, err error) {
	entries, err := os.ReadDir(p.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing the pinned devices: %w", err)
	}
	for _, e := range entries {
		name, err := url.PathUnescape(e.Name())
		if err == nil && p.hasPins(e.Name()) {
			names = append(names, name)
		}
	}
	return names, nil
}

// hasPins reports whether a directory contains any of a device's pins. The directory may belong to another program.
func (p pins) hasPins(dir string) bool {
	for _, pin := range []string{hook.Egress.String(), hook.Ingress.String(), hook.XDP.String(), qdiscPin, statePin} {
		if _, err := os.Lstat(filepath.Join(p.dir, dir, pin)); err == nil {
			return true
		}
	}
	return false
}

// Names of the pins in a device's directory, besides its hooks' pins.
const (
	qdiscPin = "clsact"
	statePin = "state"
)

// sharedPin is the name of the directory with the maps that all devices share. No device has it: the percent sign of a device's name is escaped.
const sharedPin = "%shared"

// shared returns where the maps are pinned that all devices share.
func (p pins) shared() programs.Pins { return programs.Pins{Shared: filepath.Join(p.dir, sharedPin)} }

// state returns where the maps of a device's programs are pinned.
func (p pins) state(device string) programs.Pins {
	maps := p.shared()
	maps.Device = filepath.Join(p.device(device), statePin)
	return maps
}

// hook returns a hook of a device. Index 0 stands for a device that is gone.
func (p pins) hook(device string, index int, point hook.AttachPoint, kind hook.Kind) hook.Hook {
	name := "ropewalk_gather"
	switch {
	case filepath.Base(p.dir) == filterPin:
		name = "ropewalk_filter"
	case point == hook.Egress:
		name = "ropewalk_spread"
	}
	if point == hook.XDP {
		kind = hook.XDPNative
	}
	dir := p.device(device)
	return hook.Hook{
		Device: index, AttachPoint: point, Kind: kind, Name: name,
		Pin: filepath.Join(dir, point.String()), QdiscPin: filepath.Join(dir, qdiscPin),
	}
}

// hookOrder returns the attach points in the order of detaching. Spread is first: answers to its packets still need gather.
func hookOrder() []hook.AttachPoint { return []hook.AttachPoint{hook.Egress, hook.Ingress, hook.XDP} }

// isAttached reports whether any of the programs that a device's name stands for is attached to the device with that index; 0: to any.
func (p pins) isAttached(name string, index int) (bool, error) {
	for _, point := range hookOrder() {
		st, err := p.hook(name, index, point, hook.Best).Status()
		if err != nil || st.State == hook.Attached {
			return err == nil, err
		}
	}
	return false, nil
}

// gatherHook returns the attach point of the gather program, and its status.
func (p pins) gatherHook(device string, index int) (hook.AttachPoint, hook.Status, error) {
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

// currentGather returns the device's present gather mode, or "" if nothing is attached.
func (p pins) currentGather(device string, index int) (Gather, error) {
	egress, err := p.hook(device, index, hook.Egress, hook.Best).Status()
	if err != nil || egress.State == hook.Detached {
		return "", err
	}
	switch point, at, err := p.gatherHook(device, index); {
	case err != nil || at.State == hook.Detached:
		return "", err
	case point == hook.XDP:
		return GatherXDP, nil
	default:
		return GatherTC, nil
	}
}

// otherTunnels returns all tunnels but the one with that port, and the lanes of that one.
func (p pins) otherTunnels(port uint16) (others []programs.Tunnel, lanes []uint16, err error) {
	tunnels, err := p.tunnels()
	for _, t := range tunnels {
		if t.Port == port {
			lanes = t.Lanes
		} else {
			others = append(others, t)
		}
	}
	return others, lanes, err
}

// tunnels returns the tunnels. There are none if the maps are missing or have another layout.
func (p pins) tunnels() ([]programs.Tunnel, error) {
	s, err := programs.OpenState(p.shared())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return s.Tunnels()
}

// peers returns a tunnel's peers in the maps, none if these are missing.
func (p pins) peers(port uint16) []programs.Peer {
	s, err := programs.OpenState(p.shared())
	if err != nil {
		return nil
	}
	defer s.Close()
	_, peers, _ := readTunnel(s, port)
	return peers
}
