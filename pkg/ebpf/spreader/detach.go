// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/ebpf/hook"
	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
)

// Detach ends spreading and gathering on all devices of the network namespace. It does that for
// the tunnel with that listen port, or for all tunnels if port is 0. With the last tunnel it
// removes the programs and all pins. It returns nil if nothing is attached.
//
// A peer that does not gather may still answer to a lane port, until the next packet that it receives from the tunnel.
func (h *Host) Detach(ctx context.Context, port uint16) error {
	p, unlock, err := h.openMounted(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		defer unlock()
		err = p.detach(port)
	}
	if err != nil {
		return fmt.Errorf("detaching spread: %w", err)
	}
	return nil
}

// mounted returns the BPF file system. If there is none, the error is fs.ErrNotExist.
func (h *Host) mounted() (string, error) {
	if h.FS != "" {
		return h.FS, nil
	}
	return hook.MountedBPFFS()
}

// openMounted is open without creating or mounting anything.
func (h *Host) openMounted(ctx context.Context) (pins, func(), error) {
	root, err := h.mounted()
	if err != nil {
		return pins{}, nil, err
	}
	p, err := pinsIn(root)
	if err != nil {
		return pins{}, nil, err
	}
	unlock, err := h.lock(ctx, p, false)
	return p, unlock, err
}

func (p pins) detach(port uint16) error {
	if port != 0 {
		left, err := p.removeTunnel(port)
		if err != nil || left > 0 {
			return err
		}
	}
	devices, err := p.devices()
	errs := []error{err}
	for _, device := range devices {
		errs = append(errs, p.detachFrom(device))
	}
	if err := errors.Join(append(errs, p.removeFilters(nil))...); err != nil { // last, since the qdisc may be the filter's
		return err
	}
	err = errors.Join(programs.RemoveState(p.filterState().Device), programs.RemoveState(p.shared().Shared))
	hook.RemoveEmpty(p.fs, p.filters().dir)
	hook.RemoveEmpty(p.fs, p.dir)
	return err
}

// detachFrom removes the programs and pins of one device.
func (p pins) detachFrom(device string) error {
	index := deviceIndex(device)
	var errs []error
	for _, point := range hookOrder() {
		errs = append(errs, p.hook(device, index, point, hook.Best).Detach())
	}
	if err := errors.Join(errs...); err != nil {
		return err // the maps stay: by them the device is known to have pins
	}
	err := programs.RemoveState(p.state(device).Device)
	hook.RemoveEmpty(p.fs, p.device(device))
	return err
}

// removeTunnel removes a tunnel and returns the number of remaining ones.
func (p pins) removeTunnel(port uint16) (left int, err error) {
	s, err := programs.OpenState(p.shared())
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer s.Close()
	if err := s.RemoveTunnel(port); err != nil {
		return 0, err
	}
	tunnels, err := s.Tunnels()
	return len(tunnels), err
}

// deviceIndex returns the device's index, or 0 if it is gone.
func deviceIndex(name string) int {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return 0
	}
	return l.Attrs().Index
}
