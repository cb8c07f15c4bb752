// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strconv"

	"github.com/mdlayher/genetlink"
	genl "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
)

// zones are the names of the devices by index. The maps of the programs have a device's index as the zone of a link-local address
// (programs.Peer). All else has its name, as wg(8) shows it.
type zones map[int]string

func zonesOf(links []netlink.Link) zones {
	z := make(zones, len(links))
	for _, l := range links {
		z[l.Attrs().Index] = l.Attrs().Name
	}
	return z
}

// hasZone reports whether an address is one of a device alone.
func hasZone(a netip.Addr) bool { return a.Is6() && !a.Is4In6() && a.IsLinkLocalUnicast() }

// zonedAddr returns an address with a zone if it is link-local, else without any.
func zonedAddr(a netip.Addr, zone string) netip.Addr {
	if a = a.Unmap(); !hasZone(a) {
		zone = ""
	}
	return a.WithZone(zone)
}

// named returns an endpoint with the name of its device.
func (z zones) named(e netip.AddrPort) netip.AddrPort {
	index, err := strconv.Atoi(e.Addr().Zone())
	if name, ok := z[index]; err == nil && ok {
		return netip.AddrPortFrom(e.Addr().WithZone(name), e.Port())
	}
	return e
}

// indexed returns an endpoint with the index of its device. The name of a device that does not exist stays, and stands for no device.
func (z zones) indexed(e netip.AddrPort) netip.AddrPort {
	if e.Addr().Zone() == "" {
		return e
	}
	for index, name := range z {
		if name == e.Addr().Zone() {
			return netip.AddrPortFrom(e.Addr().WithZone(strconv.Itoa(index)), e.Port())
		}
	}
	return e
}

// ownAddresses returns this host's addresses, link-local ones with their device's name.
func (z zones) ownAddresses(addresses map[int][]netip.Prefix) map[netip.Addr]bool {
	own := map[netip.Addr]bool{}
	for index, all := range addresses {
		for _, p := range all {
			own[zonedAddr(p.Addr(), z[index])] = true
		}
	}
	return own
}

// addZones adds the zones to a kernel tunnel's link-local endpoints, which wgctrl does not decode. An endpoint that moved meanwhile gets none.
func addZones(t *Tunnel, links []hostnet.Link) error {
	if t.Userspace || !slices.ContainsFunc(t.Peers, func(p TunnelPeer) bool { return hasZone(p.Endpoint.Addr()) }) {
		return nil
	}
	messages, err := dumpDevice(t.Name)
	if err != nil {
		return err
	}
	names := zones{}
	for _, l := range links {
		names[l.Index] = l.Name
	}
	endpoints := map[string]netip.AddrPort{}
	for _, m := range messages {
		if err := decodeEndpoints(m.Data, endpoints); err != nil {
			return err
		}
	}
	for i := range t.Peers {
		p := &t.Peers[i]
		e := endpoints[p.Key]
		if hasZone(p.Endpoint.Addr()) && e.Addr().WithZone("") == p.Endpoint.Addr() && e.Port() == p.Endpoint.Port() {
			p.Endpoint = names.named(e)
		}
	}
	return nil
}

// dumpDevice reads a kernel tunnel (include/uapi/linux/wireguard.h).
func dumpDevice(name string) ([]genetlink.Message, error) {
	conn, err := genetlink.Dial(nil)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	family, err := conn.GetFamily(unix.WG_GENL_NAME)
	if err != nil {
		return nil, err
	}
	request := genl.NewAttributeEncoder()
	request.String(unix.WGDEVICE_A_IFNAME, name)
	data, err := request.Encode()
	if err != nil {
		return nil, err
	}
	header := genetlink.Header{Command: unix.WG_CMD_GET_DEVICE, Version: unix.WG_GENL_VERSION}
	return conn.Execute(genetlink.Message{Header: header, Data: data}, family.ID, genl.Request|genl.Dump)
}

// decodeEndpoints adds the IPv6 endpoints in a message about a device to those by the peers' keys. Zones are the devices' indices.
func decodeEndpoints(data []byte, to map[string]netip.AddrPort) error {
	device, err := genl.NewAttributeDecoder(data)
	if err != nil {
		return err
	}
	for device.Next() {
		if device.Type() != unix.WGDEVICE_A_PEERS {
			continue
		}
		device.Nested(func(peers *genl.AttributeDecoder) error {
			for peers.Next() {
				peers.Nested(func(peer *genl.AttributeDecoder) error { return decodeEndpoint(peer, to) })
			}
			return nil
		})
	}
	return device.Err()
}

func decodeEndpoint(peer *genl.AttributeDecoder, to map[string]netip.AddrPort) error {
	var key wgtypes.Key
	var endpoint netip.AddrPort
	for peer.Next() {
		switch b := peer.Bytes(); {
		case peer.Type() == unix.WGPEER_A_PUBLIC_KEY && len(b) == len(key):
			key = wgtypes.Key(b)
		case peer.Type() == unix.WGPEER_A_ENDPOINT && len(b) == unix.SizeofSockaddrInet6:
			a := netip.AddrFrom16([16]byte(b[8:24]))
			if zone := binary.NativeEndian.Uint32(b[24:]); zone != 0 {
				a = zonedAddr(a, strconv.FormatUint(uint64(zone), 10))
			}
			endpoint = netip.AddrPortFrom(a, binary.BigEndian.Uint16(b[2:]))
		}
	}
	if endpoint.IsValid() {
		to[key.String()] = endpoint
	}
	return nil
}
