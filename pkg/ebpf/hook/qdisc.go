// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
)

// ensureQdisc adds a clsact qdisc to the device if it has none. It records this by pinning the program at QdiscPin too,
// since the BPF file system is the only record of this package.
func (h Hook) ensureQdisc(p *ebpf.Program) error {
	there, err := h.qdisc()
	switch {
	case err != nil:
		return err
	case there == "clsact":
		return nil
	case there != "":
		return fmt.Errorf("attaching to the %s hook: the device has a qdisc of type %s, which has no egress hook; remove it "+
			"(tc qdisc del dev DEVICE ingress), or have its owner use clsact, and retry", h.AttachPoint, there)
	}
	err = netlink.QdiscAdd(h.clsact())
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("adding a clsact qdisc: %w (%w): needs a kernel with CONFIG_NET_SCH_INGRESS (module sch_ingress)",
			ebpf.ErrNotSupported, err)
	}
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("adding a clsact qdisc: %w", err)
	}
	if err := replacePin(p, h.QdiscPin); err != nil {
		return errors.Join(err, netlink.QdiscDel(h.clsact()))
	}
	return nil
}

// removeQdisc removes the clsact qdisc if this package added it and it has no filters.
func (h Hook) removeQdisc() error {
	if _, err := os.Lstat(h.QdiscPin); err != nil {
		return nil //nolint:nilerr // not added by this package
	}
	there, err := h.qdisc()
	if err != nil {
		return err
	}
	if there == "clsact" {
		for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
			if filters, err := listFilters(h.Device, parent); err != nil || len(filters) > 0 {
				return err
			}
		}
		if err := netlink.QdiscDel(h.clsact()); err != nil && !isGone(err) {
			return fmt.Errorf("removing the clsact qdisc: %w", err)
		}
	}
	return removePin(h.QdiscPin)
}

// qdisc returns the type of the device's ingress or clsact qdisc, or "".
func (h Hook) qdisc() (string, error) {
	if h.Device == 0 {
		return "", nil
	}
	qdiscs, err := hostnet.Dump(func() ([]netlink.Qdisc, error) { return netlink.QdiscList(deviceOf(h.Device)) })
	if isGone(err) {
		return "", nil
	}
	for _, q := range qdiscs {
		if q.Attrs().Parent == netlink.HANDLE_CLSACT && q.Attrs().LinkIndex == h.Device {
			return q.Type(), nil
		}
	}
	if err != nil {
		return "", fmt.Errorf("listing the qdiscs of device index %d: %w", h.Device, err)
	}
	return "", nil
}

func (h Hook) clsact() netlink.Qdisc {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: h.Device, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}}
}

// listFilters returns no filters and no error if the device or its qdisc is gone.
func listFilters(device int, parent uint32) ([]netlink.Filter, error) {
	filters, err := hostnet.Dump(func() ([]netlink.Filter, error) { return netlink.FilterList(deviceOf(device), parent) })
	if isGone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing the tc filters of device index %d: %w", device, err)
	}
	return filters, nil
}

func deviceOf(index int) netlink.Link {
	return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: index}}
}

// isGone reports whether the filter, qdisc or device of a failed operation no longer exists.
func isGone(err error) bool {
	return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL)
}
