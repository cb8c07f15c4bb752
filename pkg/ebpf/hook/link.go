// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// errNoLink is returned for a pin that is not a link.
var errNoLink = errors.New("not a BPF link")

// xdpOrTCXLink is a tcx or XDP link.
type xdpOrTCXLink struct{ link link.Link }

// loadLink returns fs.ErrNotExist if nothing is pinned, and errNoLink if the pin is not a link.
func loadLink(pin string) (attachment, error) {
	l, err := link.LoadPinnedLink(pin, nil)
	if err == nil {
		return &xdpOrTCXLink{l}, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	// The library has no specific error for a pin of another type.
	if p, programErr := ebpf.LoadPinnedProgram(pin, nil); programErr == nil {
		p.Close()
		return nil, errNoLink
	}
	return nil, err
}

func (l *xdpOrTCXLink) close() { l.link.Close() }

func (l *xdpOrTCXLink) status(h Hook) (Status, error) {
	info, err := l.link.Info()
	if err != nil {
		return Status{}, fmt.Errorf("reading the BPF link at %s: %w", h.Pin, err)
	}
	st := Status{State: Attached, Kind: TCX, Program: info.Program}
	if t := info.TCX(); t != nil {
		st.Device = int(t.Ifindex)
	}
	if x := info.XDP(); x != nil {
		st.Device = int(x.Ifindex)
		st.Kind = XDPNative
	}
	switch {
	case st.Device == 0:
		st.State = Defunct
	case h.Device != 0 && (st.Device != h.Device || !h.runs(st.Program)):
		st.State = OnOtherDevice
	}
	return st, nil
}

// runs reports whether the device, in this network namespace, runs a program. The index in a
// link's info counts in the device's own namespace, where it may have been moved to. Another
// device may have that index here.
func (h Hook) runs(id ebpf.ProgramID) bool {
	if h.AttachPoint != XDP {
		result, err := link.QueryPrograms(link.QueryOptions{Target: h.Device, Attach: h.tcxType()})
		return err == nil && slices.ContainsFunc(result.Programs, func(p link.AttachedProgram) bool { return p.ID == id })
	}
	l, err := netlink.LinkByIndex(h.Device)
	if err != nil || l.Attrs().Xdp == nil {
		return false
	}
	there := ebpf.ProgramID(l.Attrs().Xdp.ProgId)
	return there == id || l.Attrs().Xdp.Attached && there == 0 // several modes at once have no common program
}

func (l *xdpOrTCXLink) replace(h Hook, p *ebpf.Program) error {
	if err := l.link.Update(p); err != nil {
		return fmt.Errorf("replacing the program at the %s hook: %w", h.AttachPoint, err)
	}
	return nil
}

// moveToFront attaches the program in front of all others, and then detaches the present one.
func (l *xdpOrTCXLink) moveToFront(h Hook, p *ebpf.Program) error {
	next := h
	next.Pin += "_next"
	if err := removePin(next.Pin); err != nil {
		return err
	}
	if err := next.createTCX(p); err != nil {
		return err
	}
	if err := os.Rename(next.Pin, h.Pin); err != nil {
		return errors.Join(fmt.Errorf("replacing the pin %s of the BPF link of the %s hook: %w", h.Pin, h.AttachPoint, err), next.Detach())
	}
	_ = l.link.Detach()
	return nil
}

// detach detaches before it closes, so that the program is off when it returns.
func (l *xdpOrTCXLink) detach(h Hook) error {
	// If the device is gone, Detach fails with one of several errors, and there is nothing to detach.
	_ = l.link.Detach()
	if err := os.Remove(h.Pin); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the BPF pin %s: %w", h.Pin, err)
	}
	return nil
}

// pinLink pins a new link, or detaches it if that fails.
func (h Hook) pinLink(l link.Link) error {
	defer l.Close()
	if err := l.Pin(h.Pin); err != nil {
		return errors.Join(fmt.Errorf("pinning the BPF link of the %s hook at %s: %w", h.AttachPoint, h.Pin, err), l.Detach())
	}
	return nil
}

func (h Hook) createTCX(p *ebpf.Program) error {
	l, err := link.AttachTCX(link.TCXOptions{Interface: h.Device, Program: p, Attach: h.tcxType(), Anchor: link.Head()})
	if err != nil {
		return fmt.Errorf("attaching to the %s hook (tcx): %w", h.AttachPoint, err)
	}
	return h.pinLink(l)
}

func (h Hook) tcxType() ebpf.AttachType {
	if h.AttachPoint == Ingress {
		return ebpf.AttachTCXIngress
	}
	return ebpf.AttachTCXEgress
}
