// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"

	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
)

// ErrNotAttached is returned by SetPaused for a device without the programs.
var ErrNotAttached = errors.New("spread is not attached")

// SetPaused pauses or resumes spread on a device: while paused, messages keep their tunnel's listen port. It takes effect at once, and lasts
// until the next SetPaused or Detach. The programs stay attached, and gather goes on. An empty device stands for all devices in the network
// namespace. With a valid peer address, only peers at that address are paused or resumed; a peer whose address changes is no longer paused.
// The error is ErrNotAttached if there is nothing to pause.
func (h *Host) SetPaused(ctx context.Context, device string, peer netip.Addr, paused bool) error {
	p, unlock, err := h.openMounted(ctx)
	if err == nil {
		defer unlock()
		err = p.setPausedOn(device, peer, paused)
	}
	on := cmp.Or(device, "all devices")
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w (ropewalk spread attach %s)", ErrNotAttached, cmp.Or(device, "DEVICE"))
	}
	if err != nil {
		return fmt.Errorf("pausing or resuming spread on %s: %w", on, err)
	}
	return nil
}

// setPausedOn continues with the other devices if one fails.
func (p pins) setPausedOn(device string, peer netip.Addr, paused bool) error {
	names := []string{device}
	if device == "" {
		var err error
		if names, err = p.devices(); err != nil {
			return err
		}
		if len(names) == 0 {
			return fs.ErrNotExist
		}
	}
	found, errs := !peer.IsValid(), []error(nil)
	for _, name := range names {
		there, err := p.setPaused(name, peer, paused)
		found = found || there
		if err != nil {
			errs = append(errs, fmt.Errorf("device %s: %w", name, err))
		}
	}
	if err := errors.Join(errs...); err != nil || found {
		return err
	}
	return fmt.Errorf("no peer has the address %s (`ropewalk spread status %s` lists them)", peer, device)
}

// setPaused reports whether there is a peer with that address.
func (p pins) setPaused(device string, peer netip.Addr, paused bool) (found bool, err error) {
	s, err := programs.OpenState(p.state(device))
	if err != nil {
		return false, err
	}
	defer s.Close()
	if !peer.IsValid() {
		return false, s.SetPaused(paused)
	}
	peers, err := s.Peers()
	if err != nil {
		return false, err
	}
	for i := range peers {
		p := &peers[i]
		if p.Endpoint.Addr() != peer.Unmap().WithZone("") {
			continue
		}
		found = true
		if err := s.SetPeerPaused(p.Tunnel, p.Endpoint, paused); err != nil {
			return found, err
		}
	}
	return found, nil
}
