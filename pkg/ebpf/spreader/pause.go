// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"

	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
)

// ErrNotAttached is returned by SetPaused for a device without the programs.
var ErrNotAttached = errors.New("spread is not attached")

// SetPaused pauses or resumes spread on all devices of the network namespace: while paused, messages keep their tunnel's listen port. It takes
// effect at once, and lasts until the next SetPaused or Detach. The programs stay attached, and gather goes on. With a valid address, only peers at
// that address are paused or resumed; a peer whose address changes is no longer paused. The error is ErrNotAttached if there is nothing to pause.
func (h *Host) SetPaused(ctx context.Context, peer netip.Addr, paused bool) error {
	p, unlock, err := h.openMounted(ctx)
	if err == nil {
		defer unlock()
		err = p.setPaused(zonedAddr(peer, peer.Zone()), paused)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w (ropewalk spread attach DEVICE)", ErrNotAttached)
	}
	if err != nil {
		return fmt.Errorf("pausing or resuming spread: %w", err)
	}
	return nil
}

func (p pins) setPaused(peer netip.Addr, paused bool) error {
	s, err := programs.OpenState(p.shared())
	if err != nil {
		return err
	}
	defer s.Close()
	if !peer.IsValid() {
		return s.SetPaused(paused)
	}
	peers, err := s.Peers()
	if err != nil {
		return err
	}
	links, _, err := hostnet.LinkAddresses()
	if err != nil {
		return err
	}
	found, names := false, zonesOf(links)
	for i := range peers {
		p := &peers[i]
		if at := names.named(p.Endpoint).Addr(); at == peer || at.WithZone("") == peer {
			found, err = true, errors.Join(err, s.SetPeerPaused(p.Tunnel, p.Endpoint, paused))
		}
	}
	if !found {
		return fmt.Errorf("no peer has the address %s (`ropewalk spread status` lists them)", peer)
	}
	return err
}
