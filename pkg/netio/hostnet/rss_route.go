// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// RSSFor returns the receive-side scaling of the device on which a peer's packets to a local
// address probably arrive. It is the device by which packets with mark leave to the peer. An
// invalid or unspecified local address matches any. scope is the interface index of a link-local
// peer, else 0. For a VLAN, macvlan or ipvlan it is the device below. For a bond or team it is the
// members' RSS, if all hash in the same way. For a bridge it is the RSS of the ports that have
// one, on the same condition. For a netvsc device it is its VF's RSS, if the VF is up. If the
// peer's packets arrive on another device, a port plan made from this is no worse than none.
//
// Errors: ErrNoRSS, also for members that differ and a lower device in another network namespace; ErrNoLink if a
// device is deleted meanwhile; ErrNoRoute.
func RSSFor(local, peer netip.Addr, scope, mark uint32) (RSS, error) {
	r, err := lookUpRoute(local, peer, scope, mark)
	if err != nil {
		return RSS{}, err
	}
	return rssFinder{read: ReadRSS, driver: Driver, byIndex: netlink.LinkByIndex, list: netlink.LinkList}.index(r.LinkIndex, rssDepth)
}

// rssFinder follows stacked links down to the devices that have queues.
type rssFinder struct {
	read    func(device string) (RSS, error)
	driver  func(device string) (string, error)
	byIndex func(int) (netlink.Link, error)
	list    func() ([]netlink.Link, error)
}

// rssDepth bounds the number of stacked links: a bridge over a VLAN over a bond over NICs is 4.
const rssDepth = 6

func (f rssFinder) index(index, depth int) (RSS, error) {
	l, err := Dump(func() (netlink.Link, error) { return f.byIndex(index) })
	if _, ok := errors.AsType[netlink.LinkNotFoundError](err); ok || errors.Is(err, unix.ENODEV) {
		err = ErrNoLink
	}
	if err != nil {
		return RSS{}, fmt.Errorf("finding the network device with index %d: %w", index, err)
	}
	return f.link(l, depth)
}

func (f rssFinder) link(l netlink.Link, depth int) (RSS, error) {
	if depth == 0 {
		return RSS{}, fmt.Errorf("%s has too many stacked devices: %w", l.Attrs().Name, ErrNoRSS)
	}
	switch l.Type() {
	case "vlan", "macvlan", "ipvlan":
		return f.lower(l, depth)
	case "bond", "team":
		return f.members(l, depth, false)
	case "bridge":
		return f.members(l, depth, true)
	case "device":
		return f.device(l)
	}
	return f.read(l.Attrs().Name)
}

// device reads a NIC, or the VF in place of its netvsc device.
func (f rssFinder) device(l netlink.Link) (RSS, error) {
	name := l.Attrs().Name
	if driver, err := f.driver(name); err != nil || driver != NetvscDriver {
		return f.read(name)
	}
	links, err := Dump(f.list)
	if err != nil {
		return RSS{}, fmt.Errorf("listing the network interfaces to find the VF of the netvsc device %s: %w", name, err)
	}
	if vf := activeVF(l, links); vf != "" {
		name = vf
	}
	return f.read(name)
}

// activeVF returns the VF through which a netvsc device receives, "" if there is none. The device
// is the VF's master (netvsc_vf_join in drivers/net/hyperv/netvsc_drv.c). The data path follows
// the VF's state (netvsc_vf_changed).
func activeVF(netvsc netlink.Link, links []netlink.Link) string {
	for _, l := range links {
		if a := l.Attrs(); l.Type() == "device" && a.MasterIndex == netvsc.Attrs().Index && a.Flags&net.FlagUp != 0 {
			return a.Name
		}
	}
	return ""
}

func (f rssFinder) lower(l netlink.Link, depth int) (RSS, error) {
	a := l.Attrs()
	if a.ParentIndex == 0 || a.NetNsID >= 0 {
		return RSS{}, fmt.Errorf("the lower device of %s is missing or in another network namespace: %w", a.Name, ErrNoRSS)
	}
	return f.index(a.ParentIndex, depth-1)
}

// members returns the RSS that all members of a link share. With mixed it ignores members without RSS.
func (f rssFinder) members(l netlink.Link, depth int, mixed bool) (RSS, error) {
	links, err := Dump(f.list)
	if err != nil {
		return RSS{}, fmt.Errorf("listing the members of %s: %w", l.Attrs().Name, err)
	}
	var all []RSS
	for _, m := range links {
		if m.Attrs().MasterIndex != l.Attrs().Index {
			continue
		}
		r, err := f.link(m, depth-1)
		if mixed && errors.Is(err, ErrNoRSS) {
			continue
		}
		if err != nil {
			return RSS{}, fmt.Errorf("member of %s: %w", l.Attrs().Name, err)
		}
		all = append(all, r)
	}
	return commonRSS(l.Attrs().Name, all)
}

// commonRSS returns the first of several, if all hash in the same way.
func commonRSS(master string, all []RSS) (RSS, error) {
	if len(all) == 0 {
		return RSS{}, fmt.Errorf("no member of %s has it: %w", master, ErrNoRSS)
	}
	for _, r := range all[1:] {
		if !sameHash(&all[0].RSS, &r.RSS) {
			return RSS{}, fmt.Errorf("%s and %s, members of %s, hash differently: %w", all[0].Device, r.Device, master, ErrNoRSS)
		}
	}
	return all[0], nil
}

func sameHash(a, b *spread.RSS) bool {
	return a.Function == b.Function && a.Transform == b.Transform && a.UDP4 == b.UDP4 && a.UDP6 == b.UDP6 &&
		slices.Equal(a.Key, b.Key) && slices.Equal(a.Indirection, b.Indirection)
}
