// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
)

// rateBurst is the burst of a rate limit in bytes. The qdisc splits trains that are larger.
const rateBurst = 16 << 10

// LimitRate limits the rate at which a device sends, and the bytes in its queue (tc-tbf(8)). Unlike a Link's queue, this queue charges
// packets to the socket that sent them until they have left.
func (h *Host) LimitRate(device string, bitsPerSecond uint64, queue int) error {
	err := h.netlink(func(nl *netlink.Handle) error {
		link, err := nl.LinkByName(device)
		if err != nil {
			return err
		}
		rate := bitsPerSecond / 8
		return nl.QdiscAdd(&netlink.Tbf{
			QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
			Rate:       rate, Limit: uint32(queue), Buffer: netlink.Xmittime(rate, rateBurst),
		})
	})
	if err != nil {
		return fmt.Errorf("limiting the rate of %s in %s: %w", device, h.name, explain(err))
	}
	return nil
}

// TxDropped returns the number of packets and trains that a device did not send. In front of a
// TUN, they found its queue full.
func (h *Host) TxDropped(device string) (n uint64, err error) {
	err = h.netlink(func(nl *netlink.Handle) error {
		link, err := nl.LinkByName(device)
		if err == nil && link.Attrs().Statistics != nil {
			n = link.Attrs().Statistics.TxDropped
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("reading the drops of %s in %s: %w", device, h.name, explain(err))
	}
	return n, nil
}

// EnlargeTCPBuffers lets TCP's windows in the host grow to the size that a path with a delay
// needs. TCP then learns nothing from one connection for the next.
func (h *Host) EnlargeTCPBuffers(bytes int) error {
	limits := fmt.Appendf(nil, "4096 131072 %d", bytes)
	err := h.Do(func() error {
		return errors.Join(
			os.WriteFile("/proc/sys/net/ipv4/tcp_rmem", limits, 0),
			os.WriteFile("/proc/sys/net/ipv4/tcp_wmem", limits, 0),
			os.WriteFile("/proc/sys/net/ipv4/tcp_no_metrics_save", []byte("1"), 0))
	})
	if err != nil {
		return fmt.Errorf("enlarging TCP's buffers in %s: %w", h.name, explain(err))
	}
	return nil
}
