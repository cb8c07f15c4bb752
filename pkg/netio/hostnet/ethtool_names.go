// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// Feature is one of a device's offloads.
type Feature struct {
	On    bool
	Fixed bool // cannot be changed
}

// ReadFeatures reads a device's offloads, keyed by the kernel's names, as `ethtool -k` does.
func ReadFeatures(device string) (map[string]Feature, error) {
	return withEthtool(device, "reading the offloads", features)
}

// SetFeature enables or disables one of a device's offloads. The kernel may adjust the request without an error;
// ReadFeatures returns the result. It needs CAP_NET_ADMIN.
func SetFeature(device, name string, on bool) error {
	_, err := withEthtool(device, "setting "+name, func(call ethtool) (struct{}, error) { return struct{}{}, setFeature(call, name, on) })
	return err
}

// ReadCounters reads a device's driver statistics, as `ethtool -S` does. The names are the driver's.
func ReadCounters(device string) (map[string]uint64, error) {
	return withEthtool(device, "reading the counters", counters)
}

// String sets of the kernel (enum ethtool_stringset).
const (
	setStats    = 1
	setFeatures = 4
)

// struct ethtool_gfeatures and ethtool_sfeatures: 8 bytes, then a block of 32-bit masks for each 32 features.
const (
	featuresHead    = 8
	getWords        = 4 // available, requested, active, never_changed
	setWords        = 2 // valid, requested
	wordLen         = 4
	featuresPerWord = 32
)

func features(call ethtool) (map[string]Feature, error) {
	names, err := stringSet(call, setFeatures)
	if err != nil {
		return nil, err
	}
	blocks := (len(names) + featuresPerWord - 1) / featuresPerWord
	b := request(unix.ETHTOOL_GFEATURES, featuresHead+blocks*getWords*wordLen)
	binary.NativeEndian.PutUint32(b[4:], uint32(blocks))
	if err := call(b); err != nil {
		return nil, err
	}
	all := make(map[string]Feature, len(names))
	for i, name := range names {
		bit := func(word int) bool {
			return uint32At(b, featuresHead+wordLen*(i/featuresPerWord*getWords+word))>>(i%featuresPerWord)&1 != 0
		}
		if name != "" {
			all[name] = Feature{On: bit(2), Fixed: bit(3) || !bit(0)}
		}
	}
	return all, nil
}

func setFeature(call ethtool, name string, on bool) error {
	names, err := stringSet(call, setFeatures)
	if err != nil {
		return err
	}
	blocks := (len(names) + featuresPerWord - 1) / featuresPerWord
	b := request(unix.ETHTOOL_SFEATURES, featuresHead+blocks*setWords*wordLen)
	binary.NativeEndian.PutUint32(b[4:], uint32(blocks))
	for i := range names {
		if names[i] != name {
			continue
		}
		block, mask := b[featuresHead+i/featuresPerWord*setWords*wordLen:], uint32(1)<<(i%featuresPerWord)
		binary.NativeEndian.PutUint32(block, mask)
		if on {
			binary.NativeEndian.PutUint32(block[wordLen:], mask)
		}
		return call(b)
	}
	return unix.EOPNOTSUPP
}

// struct ethtool_stats: 8 bytes, then the values.
const (
	statsHead = 8
	statLen   = 8
)

func counters(call ethtool) (map[string]uint64, error) {
	names, err := stringSet(call, setStats)
	if err != nil {
		return nil, err
	}
	b := request(unix.ETHTOOL_GSTATS, statsHead+statLen*stringCapacity(len(names)))
	binary.NativeEndian.PutUint32(b[4:], uint32(len(names)))
	if err := call(b); err != nil {
		return nil, err
	}
	if n := uint32At(b, 4); n != uint32(len(names)) {
		return nil, fmt.Errorf("%d counters with %d names: %w", n, len(names), errInconsistent)
	}
	all := make(map[string]uint64, len(names))
	for i, name := range names {
		all[name] = binary.NativeEndian.Uint64(b[statsHead+statLen*i:])
	}
	return all, nil
}

// struct ethtool_sset_info and ethtool_gstrings.
const (
	ssetMask    = 8 // offset
	ssetData    = 16
	ssetLen     = 20
	stringsSet  = 4 // offset
	stringsNum  = 8
	stringsHead = 12
	stringLen   = 32
	maxStrings  = 1 << 14
)

// stringCapacity returns the number of names or counters to allocate for a device with n. Kernels
// that ignore the number in the request return all that exist by then. The number of counters
// grows with the number of queues.
func stringCapacity(n int) int { return 2*n + 1024 }

// stringSet reads the names of one set, in the order of the kernel's bits or the driver's counters.
func stringSet(call ethtool, set uint32) ([]string, error) {
	info := request(unix.ETHTOOL_GSSET_INFO, ssetLen)
	binary.NativeEndian.PutUint64(info[ssetMask:], 1<<set)
	if err := call(info); err != nil {
		return nil, err
	}
	n := uint32At(info, ssetData)
	switch {
	case binary.NativeEndian.Uint64(info[ssetMask:]) == 0:
		return nil, unix.EOPNOTSUPP
	case n > maxStrings:
		return nil, fmt.Errorf("%d names: %w", n, errInconsistent)
	}
	b := request(unix.ETHTOOL_GSTRINGS, stringsHead+stringLen*stringCapacity(int(n)))
	binary.NativeEndian.PutUint32(b[stringsSet:], set)
	binary.NativeEndian.PutUint32(b[stringsNum:], n)
	if err := call(b); err != nil {
		return nil, err
	}
	if now := uint32At(b, stringsNum); now != n {
		return nil, fmt.Errorf("%d names, then %d: %w", n, now, errInconsistent)
	}
	names := make([]string, n)
	for i := range names {
		name, _, _ := bytes.Cut(b[stringsHead+stringLen*i:][:stringLen], []byte{0})
		names[i] = string(bytes.Map(printable, name))
	}
	return names, nil
}
