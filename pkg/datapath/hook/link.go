// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// errNoLink says that a pin is of something else.
var errNoLink = errors.New("not a link")

// pinned is a tcx or XDP link.
type pinned struct{ link link.Link }

// loadLink returns an error that is fs.ErrNotExist where nothing is pinned, and errNoLink where no link is.
func loadLink(pin string) (holder, error) {
	l, err := link.LoadPinnedLink(pin, nil)
	if err == nil {
		return &pinned{l}, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	// The library has no error of its own for a pin of another type.
	if p, programErr := ebpf.LoadPinnedProgram(pin, nil); programErr == nil {
		p.Close()
		return nil, errNoLink
	}
	return nil, err
}

func (l *pinned) close() { l.link.Close() }

func (l *pinned) status(h Hook) (Status, error) {
	info, err := l.link.Info()
	if err != nil {
		return Status{}, fmt.Errorf("reading the link at %s: %w", h.Pin, err)
	}
	st := Status{State: Attached, Kind: TCX, Program: info.Program}
	if t := info.TCX(); t != nil {
		st.Device = int(t.Ifindex)
	}
	if x := info.XDP(); x != nil {
		st.Device = int(x.Ifindex)
		st.Kind = xdpKind(st.Device)
	}
	switch {
	case st.Device == 0:
		st.State = Defunct
	case h.Device != 0 && st.Device != h.Device:
		st.State = Elsewhere
	}
	return st, nil
}

func (l *pinned) replace(h Hook, p *ebpf.Program) error {
	if err := l.link.Update(p); err != nil {
		return fmt.Errorf("replacing the program at the %s hook: %w", h.Place, err)
	}
	return nil
}

// detach is not left to the last descriptor: it is done when it returns.
func (l *pinned) detach(h Hook) error {
	// A link whose device is gone has nothing to detach from, and says so in several ways.
	_ = l.link.Detach()
	if err := os.Remove(h.Pin); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the pin %s: %w", h.Pin, err)
	}
	return nil
}

// keep pins a new link, or breaks it.
func (h Hook) keep(l link.Link) error {
	defer l.Close()
	if err := l.Pin(h.Pin); err != nil {
		return errors.Join(fmt.Errorf("pinning the %s link at %s: %w", h.Place, h.Pin, err), l.Detach())
	}
	return nil
}

func (h Hook) createTCX(p *ebpf.Program) error {
	at := ebpf.AttachTCXEgress
	if h.Place == Ingress {
		at = ebpf.AttachTCXIngress
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: h.Device, Program: p, Attach: at, Anchor: link.Head()})
	if err != nil {
		return fmt.Errorf("attaching to the %s hook (tcx): %w", h.Place, err)
	}
	return h.keep(l)
}
