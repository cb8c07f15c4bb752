// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"maps"
	"testing"

	"github.com/vishvananda/netlink"
)

func TestBigTCPDevicesAreThoseAboveTheLimit(t *testing.T) {
	enterNamespace(t)
	addVeth(t, "d0", "d1")
	d1, err := netlink.LinkByName("d1")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetGROMaxSize(d1, 150000); err != nil {
		t.Skipf("needs BIG TCP (Linux 5.19): %v", err)
	}
	if d1, err = netlink.LinkByName("d1"); err == nil && d1.Attrs().GROMaxSize == 0 {
		t.Skip("needs BIG TCP (Linux 5.19): this kernel ignores gro_max_size")
	}
	list, err := BigTCPDevices()
	if err != nil || len(list) != 1 || list[0].Device != "d1" || !maps.Equal(list[0].Limits, map[string]int{"gro_max_size": 150000}) {
		t.Errorf("got %v, %v; want d1 with a gro_max_size of 150000", list, err)
	}
}
