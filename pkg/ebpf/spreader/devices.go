// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
)

// device is a device to which the programs are attached.
type device struct {
	name     string
	index    int
	ethernet bool   // whether its packets begin with an Ethernet header
	gather   Gather // GatherTC or GatherXDP
}

// CheckDevice returns an error for a device that cannot have the programs, or on which they would
// have no effect. The programs read packets that begin with an Ethernet or an IP header. A ppp
// device's begin with an IP header (drivers/net/ppp/ppp_generic.c adds and removes its own). An
// ipvlan device in mode L3 or L3S sends and receives by the IP layer of the device below
// (drivers/net/ipvlan/ipvlan_core.c).
func CheckDevice(l netlink.Link) error {
	a := l.Attrs()
	ipvlan, isIPvlan := l.(*netlink.IPVlan)
	switch {
	case a.Flags&net.FlagLoopback != 0:
		return fmt.Errorf("%s is the loopback device: its packets reach no NIC, so there is nothing to spread", a.Name)
	case l.Type() == "wireguard":
		return fmt.Errorf("%s is a WireGuard device: name the device through which its outer packets leave "+
			"(`ip route get PEER` shows it)", a.Name)
	case !slices.Contains([]string{"ether", "none", "ppp"}, a.EncapType):
		return fmt.Errorf("%s is of type link/%s: its packets begin with neither an Ethernet header nor that of IP", a.Name, a.EncapType)
	case isIPvlan && ipvlan.Mode != netlink.IPVLAN_MODE_L2:
		return fmt.Errorf("%s is an ipvlan device in mode L3 or L3S, which receives behind tc: attach to the device below it", a.Name)
	}
	return nil
}

// deviceOf returns a device. It gathers with tc.
func deviceOf(l netlink.Link) device {
	a := l.Attrs()
	return device{name: a.Name, index: a.Index, ethernet: a.EncapType == "ether", gather: GatherTC}
}

// innerKinds are kinds of devices that carry packets inside others, or none to other hosts. Outer packets of a WireGuard do not arrive there, unless a
// route leads to its peer by one: then it is named in the Config.
var innerKinds = []string{
	"tuntap", "dummy", "vxlan", "geneve", "gre", "gretap", "ip6gre", "ip6gretap", "xfrm", "ifb",
}

// findReceivers adds this host's addresses, and the devices on which it may receive from its
// peers, whichever device the routes to them name. These devices have an IP address, and are no
// part of another device and no end of a container. Other devices have the error filter.
func (pl *plan) findReceivers(p pins, known attempts) error {
	links, addresses, err := hostnet.LinkAddresses()
	if err != nil {
		return err
	}
	attached, err := p.devices()
	if err != nil {
		return err
	}
	pl.zones = zonesOf(links)
	pl.own = pl.zones.ownAddresses(addresses)
	kinds := map[int]string{}
	for _, l := range links {
		kinds[l.Attrs().Index] = l.Type()
	}
	maps.DeleteFunc(known, func(index int, _ attempt) bool {
		_, there := kinds[index]
		return !there
	})
	for _, l := range links {
		a := l.Attrs()
		all := addresses[a.Index]
		for _, p := range all {
			pl.addresses = append(pl.addresses, zonedAddr(p.Addr(), strconv.Itoa(a.Index)))
		}
		part := a.MasterIndex != 0 && kinds[a.MasterIndex] != "vrf"
		if part {
			pl.parts = append(pl.parts, a.Name)
		}
		switch {
		case part && a.Index == pl.devices[0].index:
			return fmt.Errorf("%s is part of %s, and messages would count at both: name the device that has this host's address", a.Name, cmp.Or(pl.zones[a.MasterIndex], "another device"))
		case part, a.Index == pl.devices[0].index:
		case CheckDevice(l) != nil, slices.Contains(innerKinds, l.Type()), len(all) == 0, hostnet.IsPodEnd(l.Type(), all):
			if mayHaveFilter(l) && !slices.Contains(attached, a.Name) {
				pl.filtered = append(pl.filtered, deviceOf(l))
			}
		case known[a.Index].refused():
			pl.refuse(a.Name, known[a.Index].err)
		default:
			d := deviceOf(l)
			if d.gather, err = p.gatherOf(d); err != nil {
				return err
			}
			pl.devices = append(pl.devices, d)
			pl.report.AlsoOn = append(pl.report.AlsoOn, a.Name)
		}
	}
	return nil
}

// gatherOf returns the present gather mode of a further device, which may come from another tunnel.
func (p pins) gatherOf(d device) (Gather, error) {
	if p.dir == "" {
		return d.gather, nil
	}
	present, err := p.currentGather(d.name, d.index)
	return cmp.Or(present, d.gather), err
}

// refuse reports a device that cannot have the programs.
func (pl *plan) refuse(name string, err error) {
	pl.report.NotOn = append(pl.report.NotOn, name)
	pl.warn("the programs cannot be attached to %s: what arrives there is not gathered: %v", name, err)
}

// attempts are the last attempts of this process to give devices the programs, by the device's index.
type attempts map[int]attempt

// attempt is one of them. An error keeps the device out of all plans until its time.
type attempt struct {
	err   error
	until time.Time
}

func (a attempt) refused() bool { return a.err != nil && time.Now().Before(a.until) }

// removeGone removes the programs from devices that have become parts of others, which have them.
// It also removes the pins of devices that no longer exist, other than the configured one: nobody
// attaches to them again by name.
func (p pins) removeGone(configured string, parts []string) error {
	names, err := p.devices()
	if err != nil {
		return err
	}
	for _, name := range names {
		if !slices.Contains(parts, name) {
			if name == configured || deviceIndex(name) != 0 {
				continue
			}
			if attached, err := p.isAttached(name, 0); err != nil || attached {
				continue // renamed
			}
		}
		if err := p.detachFrom(name); err != nil {
			return err
		}
	}
	return nil
}
