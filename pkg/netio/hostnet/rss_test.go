// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// fakeNIC simulates the ethtool commands of a driver.
type fakeNIC struct {
	driver           string
	key              []byte
	table            []uint32
	function, xfrm   byte
	udp4, udp6       uint64
	rules            uint32
	errs             map[uint32]error  // by command
	lengths          [2]uint32         // isSupported in place of table's and key's
	changesOnce      bool              // the table grows between the two requests
	lengthsAlternate bool              // the second reply has other lengths than the first
	calls            map[uint32]int    // by command
	last             map[uint32][]byte // request, by command
}

func goodNIC() *fakeNIC {
	return &fakeNIC{
		driver: "ice", key: spread.MicrosoftKey(), table: spread.EqualIndirection(16), function: 1,
		udp4: 0xf0, udp6: 0xf0, errs: map[uint32]error{}, calls: map[uint32]int{}, last: map[uint32][]byte{},
	}
}

func (n *fakeNIC) call(b []byte) error {
	command := binary.NativeEndian.Uint32(b)
	n.calls[command]++
	n.last[command] = slices.Clone(b)
	if err := n.errs[command]; err != nil {
		return err
	}
	put := func(offset int, v uint32) { binary.NativeEndian.PutUint32(b[offset:], v) }
	switch command {
	case unix.ETHTOOL_GRSSH:
		return n.rssh(b, put)
	case unix.ETHTOOL_GRXFH:
		fields := map[uint32]uint64{udpV4Flow: n.udp4, udpV6Flow: n.udp6}[binary.NativeEndian.Uint32(b[4:])]
		binary.NativeEndian.PutUint64(b[8:], fields)
	case unix.ETHTOOL_GRXCLSRLCNT:
		put(184, n.rules)
	case unix.ETHTOOL_GDRVINFO:
		copy(b[4:36], n.driver)
	}
	return nil
}

func (n *fakeNIC) rssh(b []byte, put func(int, uint32)) error {
	table, key := binary.NativeEndian.Uint32(b[8:]), binary.NativeEndian.Uint32(b[12:])
	asked := table != 0 || key != 0
	if asked && n.changesOnce {
		n.changesOnce, n.table = false, spread.EqualIndirection(200)
	}
	if asked && (table != uint32(len(n.table)) || key != uint32(len(n.key))) {
		return unix.EINVAL
	}
	put(8, uint32(len(n.table)))
	put(12, uint32(len(n.key)))
	if n.lengths != [2]uint32{} {
		put(8, n.lengths[0])
		put(12, n.lengths[1])
	}
	if !asked {
		return nil
	}
	if n.lengthsAlternate {
		put(8, uint32(len(n.table))+1)
	}
	b[16], b[17] = n.function, n.xfrm
	for i, q := range n.table {
		put(24+4*i, q)
	}
	copy(b[24+4*len(n.table):], n.key)
	return nil
}

const testRelease = "6.18.44-test"

func TestReadRSSReturnsDriverValues(t *testing.T) {
	n := goodNIC()
	r, err := readRSS("eth7", n.call, testRelease)
	if err != nil {
		t.Fatal(err)
	}
	if r.Device != "eth7" || r.Driver != "ice" || r.Function != spread.Toeplitz || r.Transform != spread.Plain ||
		r.UDP4 != spread.FourTuple || r.UDP6 != spread.FourTuple ||
		!slices.Equal(r.Key, n.key) || !slices.Equal(r.Indirection, n.table) {
		t.Errorf("got %+v", r)
	}
}

func TestReadRSSParsesDriverVariants(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(*fakeNIC)
		want func(RSS) bool
	}{
		"XOR":                    {func(n *fakeNIC) { n.function = 2 }, func(r RSS) bool { return r.Function == spread.OtherFunction }},
		"CRC32":                  {func(n *fakeNIC) { n.function = 4 }, func(r RSS) bool { return r.Function == spread.OtherFunction }},
		"no function":            {func(n *fakeNIC) { n.function = 0 }, func(r RSS) bool { return r.Function == spread.OtherFunction }},
		"symmetric xor":          {func(n *fakeNIC) { n.xfrm = 1 }, func(r RSS) bool { return r.Transform == spread.SymmetricXOR }},
		"symmetric or-xor":       {func(n *fakeNIC) { n.xfrm = 2 }, func(r RSS) bool { return r.Transform == spread.SymmetricORXOR }},
		"unknown transform":      {func(n *fakeNIC) { n.xfrm = 4 }, func(r RSS) bool { return r.Transform == spread.OtherTransform }},
		"UDP/IPv4 by addresses":  {func(n *fakeNIC) { n.udp4 = 0x30 }, func(r RSS) bool { return r.UDP4 == spread.AddressesOnly && r.UDP6 == spread.FourTuple }},
		"UDP/IPv6 by addresses":  {func(n *fakeNIC) { n.udp6 = 0x30 }, func(r RSS) bool { return r.UDP6 == spread.AddressesOnly && r.UDP4 == spread.FourTuple }},
		"by source alone":        {func(n *fakeNIC) { n.udp4 = 0x50 }, func(r RSS) bool { return r.UDP4 == spread.OtherFields }},
		"discarded":              {func(n *fakeNIC) { n.udp4 = 1 << 31 }, func(r RSS) bool { return r.UDP4 == spread.OtherFields }},
		"by VLAN too":            {func(n *fakeNIC) { n.udp4 = 0xf4 }, func(r RSS) bool { return r.UDP4 == spread.OtherFields }},
		"no fields":              {func(n *fakeNIC) { n.errs[unix.ETHTOOL_GRXFH] = unix.EOPNOTSUPP }, func(r RSS) bool { return r.UDP4 == spread.UnknownFields }},
		"fields unknown":         {func(n *fakeNIC) { n.errs[unix.ETHTOOL_GRXFH] = unix.EINVAL }, func(r RSS) bool { return r.UDP6 == spread.UnknownFields }},
		"table grew":             {func(n *fakeNIC) { n.changesOnce = true }, func(r RSS) bool { return len(r.Indirection) == 256 }},
		"driver of 40 bytes":     {func(n *fakeNIC) { n.driver = strings.Repeat("x", 40) }, func(r RSS) bool { return len(r.Driver) == 32 }},
		"driver with a sequence": {func(n *fakeNIC) { n.driver = "\x1b[2J" }, func(r RSS) bool { return r.Driver == "?[2J" }},
	} {
		n := goodNIC()
		c.set(n)
		if r, err := readRSS("eth7", n.call, testRelease); err != nil || !c.want(r) {
			t.Errorf("%s: got %+v, error %v, want no error", name, r, err)
		}
	}
}

func TestUnreportedMellanoxTransformIsKnown(t *testing.T) {
	for _, c := range []struct {
		driver, release string
		xfrm            byte
		want            spread.Transform
	}{
		{"mlx5_core", "5.10.0-30-amd64", 0, spread.SymmetricORXOR},
		{"mlx5_core", "6.14.11", 0, spread.SymmetricORXOR},
		{"mlx5_core", "6.15.0-rc1", 0, spread.Plain},
		{"mlx5_core", "6.15.0", 2, spread.SymmetricORXOR},
		{"mlx5_core", "7.2.0", 0, spread.Plain},
		{"mlx5_core", "unknown", 0, spread.Plain},
		{"ice", "6.1.0", 0, spread.Plain},
		{"ice", "6.10.0", 1, spread.SymmetricXOR},
	} {
		n := goodNIC()
		n.driver, n.xfrm = c.driver, c.xfrm
		if r, err := readRSS("eth7", n.call, c.release); err != nil || r.Transform != c.want {
			t.Errorf("%s on %s: transform %d (%v), want %d", c.driver, c.release, r.Transform, err, c.want)
		}
	}
}

// TestMisreportedHashIsNotPlannedFor: a port plan for another hash leaves queues idle.
func TestMisreportedHashIsNotPlannedFor(t *testing.T) {
	for driver, want := range map[string]error{"ena": spread.ErrUnknownHash, NetvscDriver: spread.ErrUnknownHash, "ice": nil} {
		n := goodNIC()
		n.driver = driver
		r, err := readRSS("eth7", n.call, "6.12.0")
		if err == nil {
			_, err = spread.Plan(&r.RSS, netip.MustParseAddr("10.0.3.17"), netip.MustParseAddrPort("10.0.9.4:51820"), spread.DefaultPorts, 0)
		}
		if !errors.Is(err, want) {
			t.Errorf("%s: got error %v, want %v", driver, err, want)
		}
	}
}

// TestUncertainHashIsNotPlannedFor: the driver reports no fields, as gve's, or rules override the hash.
func TestUncertainHashIsNotPlannedFor(t *testing.T) {
	for name, change := range map[string]func(n *fakeNIC){
		"no fields": func(n *fakeNIC) { n.errs[unix.ETHTOOL_GRXFH] = unix.EOPNOTSUPP }, "a flow rule": func(n *fakeNIC) { n.rules = 1 },
	} {
		n := goodNIC()
		change(n)
		r, err := readRSS("eth7", n.call, testRelease)
		if err != nil {
			t.Fatal(err)
		}
		_, err = spread.Plan(&r.RSS, netip.MustParseAddr("10.0.3.17"), netip.MustParseAddrPort("10.0.9.4:51820"), spread.DefaultPorts, 0)
		if !errors.Is(err, spread.ErrUnknownHash) {
			t.Errorf("%s: got error %v, want %v", name, err, spread.ErrUnknownHash)
		}
	}
}

func TestInconsistentDriverIsRejected(t *testing.T) {
	for name, c := range map[string]struct {
		lie  func(*fakeNIC)
		want error
	}{
		"table of 4 G entries":     {func(n *fakeNIC) { n.lengths = [2]uint32{1<<32 - 1, 40} }, errInconsistent},
		"key of 4 GB":              {func(n *fakeNIC) { n.lengths = [2]uint32{128, 1<<32 - 1} }, errInconsistent},
		"lengths of another table": {func(n *fakeNIC) { n.lengths = [2]uint32{64, 40} }, errInconsistent},
		"other lengths later":      {func(n *fakeNIC) { n.lengthsAlternate = true }, errInconsistent},
		"queue out of range":       {func(n *fakeNIC) { n.table[5] = 1 << 31 }, errInconsistent},
		"no table":                 {func(n *fakeNIC) { n.table = nil }, ErrNoRSS},
		"no key":                   {func(n *fakeNIC) { n.key = nil }, ErrNoRSS},
		"no RSS":                   {func(n *fakeNIC) { n.errs[unix.ETHTOOL_GRSSH] = unix.EOPNOTSUPP }, ErrNoRSS},
		"deleted at first":         {func(n *fakeNIC) { n.errs[unix.ETHTOOL_GRSSH] = unix.ENODEV }, ErrNoLink},
		"deleted later":            {func(n *fakeNIC) { n.errs[unix.ETHTOOL_GRXFH] = unix.ENODEV }, ErrNoLink},
		"deleted at last":          {func(n *fakeNIC) { n.errs[unix.ETHTOOL_GDRVINFO] = unix.ENODEV }, ErrNoLink},
		"forbidden":                {func(n *fakeNIC) { n.errs[unix.ETHTOOL_GDRVINFO] = unix.EPERM }, unix.EPERM},
	} {
		n := goodNIC()
		c.lie(n)
		r, err := readRSS("eth7", n.call, testRelease)
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), "eth7") || r.Key != nil {
			t.Errorf("%s: got %+v, %v, want %v", name, r, err, c.want)
		}
	}
}

func TestReservedFieldsOfRequestsAreZero(t *testing.T) {
	n := goodNIC()
	if _, err := readRSS("eth7", n.call, testRelease); err != nil {
		t.Fatal(err)
	}
	// The kernel rejects nonzero ones: rss_context, then hfunc to the end of rsvd32.
	b := n.last[unix.ETHTOOL_GRSSH]
	if got := slices.Concat(b[4:8], b[16:24]); !slices.Equal(got, make([]byte, 12)) {
		t.Errorf("got % x, want % x", got, make([]byte, 12))
	}
	if len(b) != 24+4*128+40 || n.calls[unix.ETHTOOL_GRSSH] != 2 {
		t.Errorf("%d bytes in the last of %d calls", len(b), n.calls[unix.ETHTOOL_GRSSH])
	}
}

func FuzzReadRSS(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, 4096))
	f.Fuzz(func(t *testing.T, answers []byte) {
		// Replies of random bytes, with lengths that are small enough to request.
		_, _ = readRSS("eth7", func(b []byte) error {
			if len(answers) > 0 && answers[0] == 255 {
				return unix.Errno(answers[0] & 127)
			}
			n := copy(b, answers)
			answers = answers[n:]
			if len(b) == rxfhLen && n == rxfhLen {
				b[9], b[10], b[11], b[13], b[14], b[15] = 0, 0, 0, 0, 0, 0
			}
			return nil
		}, testRelease)
	})
}

func TestDevicesWithoutRSSReturnErrNoRSS(t *testing.T) {
	enterNamespace(t)
	addVeth(t, "left0", "right0")
	for _, device := range []string{"lo", "left0"} {
		if _, err := ReadRSS(device); !errors.Is(err, ErrNoRSS) {
			t.Errorf("%s: got error %v, want %v", device, err, ErrNoRSS)
		}
	}
	for _, device := range []string{"absent0", "", strings.Repeat("x", 100)} {
		if _, err := ReadRSS(device); !errors.Is(err, ErrNoLink) {
			t.Errorf("%q: got error %v, want %v", device, err, ErrNoLink)
		}
	}
}

func TestRSSIsReadFromDeviceTowardsPeer(t *testing.T) {
	enterNamespace(t)
	addVeth(t, "left0", "right0")
	for _, addr := range []string{"192.0.2.1/24", "2001:db8::1/64"} {
		if err := AddAddress("left0", netip.MustParsePrefix(addr)); err != nil {
			t.Fatal(err)
		}
	}
	for local, peer := range map[string]string{
		"192.0.2.1": "192.0.2.2", "0.0.0.0": "192.0.2.3", "::": "2001:db8::2", "::ffff:192.0.2.1": "::ffff:192.0.2.2",
	} {
		if _, err := RSSFor(netip.MustParseAddr(local), netip.MustParseAddr(peer), 0, 0); !errors.Is(err, ErrNoRSS) ||
			!strings.Contains(err.Error(), "left0") {
			t.Errorf("%s to %s: got %v", local, peer, err)
		}
	}
	for _, peer := range []netip.Addr{netip.MustParseAddr("198.51.100.1"), {}} {
		if _, err := RSSFor(netip.Addr{}, peer, 0, 0); err == nil || errors.Is(err, ErrNoRSS) {
			t.Errorf("to %s: got %v", peer, err)
		}
	}
	if _, err := RSSFor(netip.Addr{}, netip.MustParseAddr("192.0.2.1"), 0, 0); !errors.Is(err, ErrNoRSS) {
		t.Errorf("to ourselves: got %v", err)
	}
}

// hostOf returns a finder on a simulated host: NICs eth0, eth1 and eth9 hash alike, odd0 has another key, veth0 has no RSS.
func hostOf(links ...netlink.Link) rssFinder {
	return rssFinder{
		read: func(device string) (RSS, error) {
			r := RSS{RSS: spread.RSS{Device: device, Key: spread.MicrosoftKey(), Indirection: spread.EqualIndirection(4)}}
			switch device {
			case "veth0":
				return RSS{}, ErrNoRSS
			case "odd0":
				r.Key[0] = 0
			}
			return r, nil
		},
		driver: func(device string) (string, error) {
			if device == "hv0" {
				return NetvscDriver, nil
			}
			return "mlx5_core", nil
		},
		byIndex: func(index int) (netlink.Link, error) {
			for _, l := range links {
				if l.Attrs().Index == index {
					return l, nil
				}
			}
			return nil, unix.ENODEV
		},
		list: func() ([]netlink.Link, error) { return links, nil },
	}
}

// TestNetvscIsReadFromItsActiveVF: packets arrive through the VF only while it is up. Other drivers' devices have no VF below them.
func TestNetvscIsReadFromItsActiveVF(t *testing.T) {
	for _, tt := range []struct {
		master string
		flags  net.Flags
		want   string
	}{{"hv0", net.FlagUp, "eth1"}, {"hv0", 0, "hv0"}, {"eth0", net.FlagUp, "eth0"}} {
		vf := attrs("eth1", 2, 0, 1)
		vf.Flags = tt.flags
		r, err := hostOf(&netlink.Device{LinkAttrs: attrs(tt.master, 1, 0, 0)}, &netlink.Device{LinkAttrs: vf}).index(1, rssDepth)
		if err != nil || r.Device != tt.want {
			t.Errorf("%s, VF with flags %v: read %s (%v), want %s", tt.master, tt.flags, r.Device, err, tt.want)
		}
	}
}

func attrs(name string, index, parent, master int) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name, a.Index, a.ParentIndex, a.MasterIndex = name, index, parent, master
	return a
}

func nic(name string, index, master int) netlink.Link {
	return &netlink.Device{LinkAttrs: attrs(name, index, 0, master)}
}

func vlan(index, parent, master int) netlink.Link {
	return &netlink.Vlan{LinkAttrs: attrs("vlan", index, parent, master)}
}

func bond(index, master int) netlink.Link {
	return &netlink.Bond{LinkAttrs: attrs("bond", index, 0, master)}
}

func bridge(index int) netlink.Link {
	return &netlink.Bridge{LinkAttrs: attrs("bridge", index, 0, 0)}
}

func TestRSSIsReadFromLowerDevices(t *testing.T) {
	elsewhere := attrs("away", 1, 7, 0)
	elsewhere.NetNsID = 3
	for name, c := range map[string]struct {
		links []netlink.Link // the first is looked up
		want  string         // device, or "" for ErrNoRSS
	}{
		"NIC":                      {[]netlink.Link{nic("eth0", 1, 0)}, "eth0"},
		"without RSS":              {[]netlink.Link{nic("veth0", 1, 0)}, ""},
		"VLAN":                     {[]netlink.Link{vlan(1, 2, 0), nic("eth0", 2, 0)}, "eth0"},
		"VLAN in VLAN":             {[]netlink.Link{vlan(1, 2, 0), vlan(2, 3, 0), nic("eth0", 3, 0)}, "eth0"},
		"VLAN of other netns":      {[]netlink.Link{&netlink.Vlan{LinkAttrs: elsewhere}}, ""},
		"VLAN of nothing":          {[]netlink.Link{vlan(1, 0, 0)}, ""},
		"VLAN of itself":           {[]netlink.Link{vlan(1, 1, 0)}, ""},
		"macvlan":                  {[]netlink.Link{&netlink.Macvlan{LinkAttrs: attrs("m", 1, 2, 0)}, nic("eth0", 2, 0)}, "eth0"},
		"ipvlan":                   {[]netlink.Link{&netlink.IPVlan{LinkAttrs: attrs("i", 1, 2, 0)}, nic("eth0", 2, 0)}, "eth0"},
		"bond":                     {[]netlink.Link{bond(1, 0), nic("eth0", 2, 1), nic("eth1", 3, 1), nic("odd0", 4, 0)}, "eth0"},
		"bond of different NICs":   {[]netlink.Link{bond(1, 0), nic("eth0", 2, 1), nic("odd0", 3, 1)}, ""},
		"bond with one veth":       {[]netlink.Link{bond(1, 0), nic("eth0", 2, 1), nic("veth0", 3, 1)}, ""},
		"bond of none":             {[]netlink.Link{bond(1, 0)}, ""},
		"team":                     {[]netlink.Link{&netlink.GenericLink{LinkAttrs: attrs("t", 1, 0, 0), LinkType: "team"}, nic("eth9", 2, 1)}, "eth9"},
		"bridge":                   {[]netlink.Link{bridge(1), nic("veth0", 2, 1), nic("eth1", 3, 1)}, "eth1"},
		"bridge of veths":          {[]netlink.Link{bridge(1), nic("veth0", 2, 1)}, ""},
		"bridge of different NICs": {[]netlink.Link{bridge(1), nic("odd0", 2, 1), nic("eth1", 3, 1)}, ""},
		"VLAN over bond":           {[]netlink.Link{vlan(1, 2, 0), bond(2, 0), nic("eth0", 3, 2), nic("eth1", 4, 2)}, "eth0"},
		"bridge over VLAN":         {[]netlink.Link{bridge(1), vlan(2, 3, 1), bond(3, 0), nic("eth0", 4, 3)}, "eth0"},
		"seven VLANs and more":     {[]netlink.Link{vlan(1, 2, 0), vlan(2, 3, 0), vlan(3, 4, 0), vlan(4, 5, 0), vlan(5, 6, 0), vlan(6, 7, 0), vlan(7, 8, 0), nic("eth0", 8, 0)}, ""},
	} {
		r, err := hostOf(c.links...).index(1, rssDepth)
		if r.Device != c.want || errors.Is(err, ErrNoRSS) != (c.want == "") {
			t.Errorf("%s: got %q, %v, want %q", name, r.Device, err, c.want)
		}
	}
}

func TestDeviceDeletedDuringLookupReturnsErrNoLink(t *testing.T) {
	if _, err := hostOf(vlan(1, 2, 0)).index(1, rssDepth); !errors.Is(err, ErrNoLink) {
		t.Errorf("got error %v, want %v", err, ErrNoLink)
	}
}

func TestBridgeOfVethsHasNoRSS(t *testing.T) {
	enterNamespace(t)
	addVeth(t, "left0", "right0")
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}); err != nil {
		t.Skipf("needs bridges: %v", err)
	}
	br, err := netlink.LinkByName("br0")
	if err != nil {
		t.Fatal(err)
	}
	left, _ := netlink.LinkByName("left0")
	if err := netlink.LinkSetMaster(left, br); err != nil {
		t.Fatal(err)
	}
	var read []string
	f := rssFinder{byIndex: netlink.LinkByIndex, list: netlink.LinkList, read: func(device string) (RSS, error) {
		read = append(read, device)
		return ReadRSS(device)
	}}
	if _, err := f.index(br.Attrs().Index, rssDepth); !errors.Is(err, ErrNoRSS) || !slices.Equal(read, []string{"left0"}) {
		t.Errorf("read %v, got %v", read, err)
	}
}
