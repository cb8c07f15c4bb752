// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// MaxTrain is the largest train in bytes that devices carry without BIG TCP (GSO_LEGACY_MAX_SIZE of Linux).
const MaxTrain = 65536

// BigTCP is a device that may make or receive trains above MaxTrain. Other devices get such trains in single packets.
type BigTCP struct {
	Device string
	// Limits are the attributes above MaxTrain, as ip-link(8) names them, and their values in bytes.
	Limits map[string]int
}

// BigTCPDevices returns the devices of this network namespace with BIG TCP, without the loopback device.
func BigTCPDevices() ([]BigTCP, error) {
	all, err := Dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("listing the network interfaces: %w", err)
	}
	var list []BigTCP
	for _, l := range all {
		a := l.Attrs()
		limits := map[string]int{}
		for name, value := range map[string]uint32{
			"gso_max_size": a.GSOMaxSize, "gro_max_size": a.GROMaxSize, "gso_ipv4_max_size": a.GSOIPv4MaxSize, "gro_ipv4_max_size": a.GROIPv4MaxSize,
		} {
			if value > MaxTrain {
				limits[name] = int(value)
			}
		}
		if len(limits) > 0 && a.Name != "lo" {
			list = append(list, BigTCP{a.Name, limits})
		}
	}
	return list, nil
}
