// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/kernel"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// ErrNoRSS is wrapped by the error for a device without readable receive-side scaling: veth, loopback, TUN, or a NIC
// with one queue.
var ErrNoRSS = errors.New("no receive-side scaling")

// RSS is a device's receive-side scaling: how it selects the receive queue of a packet.
type RSS struct {
	spread.RSS // Device is the device's name
	Driver     string
}

// ReadRSS reads a device's hash function, key, indirection table and hashed fields by the ethtool ioctls, which need
// no privilege (Linux 5.10). Errors:
// ErrNoLink, ErrNoRSS, or an error about inconsistent replies of the driver.
func ReadRSS(device string) (RSS, error) {
	call, closeIt, err := openEthtool(device)
	if err == nil {
		defer closeIt()
		release, _ := kernel.Uname()
		return readRSS(device, call, release)
	}
	return RSS{}, rssError(device, err)
}

func rssError(device string, err error) error {
	switch {
	case errors.Is(err, unix.ENODEV):
		err = ErrNoLink
	case errors.Is(err, unix.EOPNOTSUPP):
		err = ErrNoRSS
	}
	return fmt.Errorf("reading the receive-side scaling of %s: %w", device, err)
}

func readRSS(device string, call ethtool, release string) (RSS, error) {
	r := RSS{RSS: spread.RSS{Device: device}}
	err := r.readTable(call)
	if err == nil {
		r.UDP4, err = readFields(call, udpV4Flow)
	}
	if err == nil {
		r.UDP6, err = readFields(call, udpV6Flow)
	}
	if err == nil {
		r.Rules, err = flowRules(call)
	}
	if err == nil {
		r.Driver, err = driverNameOrNone(call)
	}
	if err != nil {
		return RSS{}, rssError(device, err)
	}
	if r.Transform == spread.Plain && omitsTransform(r.Driver, release) {
		r.Transform = spread.SymmetricORXOR
	}
	if MisreportsHash(r.Driver) {
		r.Function = spread.OtherFunction
	}
	if r.Driver == NetvscDriver { // which reports the fields of its transmit hash
		r.UDP4, r.UDP6 = spread.AddressesOnly, spread.AddressesOnly
	}
	return r, nil
}

// struct ethtool_rxfh of include/uapi/linux/ethtool.h.
const (
	rxfhTableLen  = 8 // offset of indir_size, in entries
	rxfhKeyLen    = 12
	rxfhFunction  = 16
	rxfhTransform = 17 // since Linux 6.8, reserved and zero before
	rxfhLen       = 24

	hashToeplitz     = 1 << 0 // ETH_RSS_HASH_TOP
	xfrmSymXOR       = 1 << 0 // RXH_XFRM_SYM_XOR
	xfrmSymORXOR     = 1 << 1 // RXH_XFRM_SYM_OR_XOR
	maxTable         = 1 << 16
	maxKey           = 1 << 10
	maxQueue         = 1 << 16
	rssTableAttempts = 4
	tableEntrySize   = 4
)

var errInconsistent = errors.New("inconsistent reply from the driver")

// readTable reads the hash function, the key and the table. It reads their lengths first, and again if they changed
// meanwhile.
func (r *RSS) readTable(call ethtool) error {
	for range rssTableAttempts {
		table, key, err := tableLengths(call)
		if err != nil {
			return err
		}
		b := request(unix.ETHTOOL_GRSSH, rxfhLen+tableEntrySize*table+key)
		binary.NativeEndian.PutUint32(b[rxfhTableLen:], uint32(table))
		binary.NativeEndian.PutUint32(b[rxfhKeyLen:], uint32(key))
		if err := call(b); errors.Is(err, unix.EINVAL) { // the lengths have changed
			continue
		} else if err != nil {
			return err
		}
		if uint32At(b, rxfhTableLen) == uint32(table) && uint32At(b, rxfhKeyLen) == uint32(key) {
			return r.decodeTable(b, table)
		}
	}
	return fmt.Errorf("the lengths of key and table changed %d times: %w", rssTableAttempts, errInconsistent)
}

func tableLengths(call ethtool) (table, key int, err error) {
	b := request(unix.ETHTOOL_GRSSH, rxfhLen)
	if err := call(b); err != nil {
		return 0, 0, err
	}
	t, k := uint32At(b, rxfhTableLen), uint32At(b, rxfhKeyLen)
	if t > maxTable || k > maxKey {
		return 0, 0, fmt.Errorf("a table of %d entries and a key of %d bytes: %w", t, k, errInconsistent)
	}
	if t == 0 || k == 0 {
		return 0, 0, ErrNoRSS
	}
	return int(t), int(k), nil
}

func (r *RSS) decodeTable(b []byte, table int) error {
	r.Function, r.Transform = function(b[rxfhFunction]), transform(b[rxfhTransform])
	r.Key = slices.Clone(b[rxfhLen+tableEntrySize*table:])
	r.Indirection = make([]uint32, table)
	for i := range r.Indirection {
		r.Indirection[i] = uint32At(b, rxfhLen+tableEntrySize*i)
		if r.Indirection[i] >= maxQueue {
			return fmt.Errorf("queue %d in the table: %w", r.Indirection[i], errInconsistent)
		}
	}
	return nil
}

func function(hfunc byte) spread.Function {
	if hfunc == hashToeplitz {
		return spread.Toeplitz
	}
	return spread.OtherFunction
}

func transform(xfrm byte) spread.Transform {
	switch xfrm {
	case 0:
		return spread.Plain
	case xfrmSymXOR:
		return spread.SymmetricXOR
	case xfrmSymORXOR:
		return spread.SymmetricORXOR
	}
	return spread.OtherTransform
}

// omitsTransform reports whether a driver transforms the hash input without reporting it. mlx5 reports it since Linux
// 6.15 (commit 4d20c9f2db83, "net/mlx5e: Symmetric OR-XOR RSS hash control").
func omitsTransform(driver, release string) bool {
	r, ok := kernel.Parse(release)
	return driver == "mlx5_core" && ok && r.Before(6, 15)
}

// MisreportsHash reports whether a driver reports a Toeplitz hash that differs from the NIC's. ENA
// hashes with the bytes of the key reversed, and with an initial value that depends on the
// instance's generation. Its driver reports neither (amzn-drivers issue 169,
// ena_reorder_rss_hash_key of DPDK). Hyper-V hashes UDP by addresses alone
// (rndis_set_rss_param_msg in drivers/net/hyperv/rndis_filter.c). Its driver reports the fields
// that it hashes for the choice of a transmit queue.
func MisreportsHash(driver string) bool { return driver == "ena" || driver == NetvscDriver }

// NetvscDriver is the name of Hyper-V's paravirtual network driver. With accelerated networking packets arrive through a VF instead.
const NetvscDriver = "hv_netvsc"

// struct ethtool_rxnfc: the command, the flow type, and as its data a mask of hashed fields.
const (
	rxnfcFlow  = 4
	rxnfcData  = 8
	rxnfcRules = 184
	rxnfcLen   = 192

	udpV4Flow = 0x02 // UDP_V4_FLOW
	udpV6Flow = 0x06 // UDP_V6_FLOW

	hashAddresses = 1<<4 | 1<<5 // RXH_IP_SRC, RXH_IP_DST
	hashPorts     = 1<<6 | 1<<7 // RXH_L4_B_0_1, RXH_L4_B_2_3
)

// SetUDPFields sets the fields that a device hashes for UDP over one family, as `ethtool -N DEVICE rx-flow-hash`
// does: spread.FourTuple or spread.AddressesOnly. Some drivers accept the request without applying it; ReadRSS
// returns the result. It needs CAP_NET_ADMIN.
func SetUDPFields(device string, family Family, fields spread.Fields) error {
	_, err := withEthtool(device, "setting the hashed fields", func(call ethtool) (struct{}, error) {
		return struct{}{}, setFields(call, flowOf(family), fields)
	})
	return err
}

func flowOf(family Family) uint32 {
	if family == IPv6 {
		return udpV6Flow
	}
	return udpV4Flow
}

func setFields(call ethtool, flow uint32, fields spread.Fields) error {
	b := request(unix.ETHTOOL_SRXFH, rxnfcLen)
	binary.NativeEndian.PutUint32(b[rxnfcFlow:], flow)
	switch fields {
	case spread.FourTuple:
		binary.NativeEndian.PutUint64(b[rxnfcData:], hashAddresses|hashPorts)
	case spread.AddressesOnly:
		binary.NativeEndian.PutUint64(b[rxnfcData:], hashAddresses)
	default:
		return fmt.Errorf("fields %v: %w", fields, unix.EINVAL)
	}
	return call(b)
}

func readFields(call ethtool, flow uint32) (spread.Fields, error) {
	b := request(unix.ETHTOOL_GRXFH, rxnfcLen)
	binary.NativeEndian.PutUint32(b[rxnfcFlow:], flow)
	if ok, err := isSupported(call(b)); !ok {
		return spread.UnknownFields, err
	}
	switch binary.NativeEndian.Uint64(b[rxnfcData:]) {
	case hashAddresses | hashPorts:
		return spread.FourTuple, nil
	case hashAddresses:
		return spread.AddressesOnly, nil
	}
	return spread.OtherFields, nil
}

// flowRules returns the number of rules that send packets to a queue or to another RSS context, 0 if the driver has none.
func flowRules(call ethtool) (int, error) {
	b := request(unix.ETHTOOL_GRXCLSRLCNT, rxnfcLen)
	if ok, err := isSupported(call(b)); !ok {
		return 0, err
	}
	return int(uint32At(b, rxnfcRules)), nil
}

// driverNameOrNone returns "" if the driver does not report its name.
func driverNameOrNone(call ethtool) (string, error) {
	d, err := driverInfo(call)
	if ok, err := isSupported(err); !ok {
		return "", err
	}
	return d.Name, nil
}
