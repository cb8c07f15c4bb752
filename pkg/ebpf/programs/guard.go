// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// GuardLayout numbers the layout of the guard's maps. Increment it with any change to the layout
// or meaning of the maps in bpf/guard.bpf.c. It must be part of the path at which they are
// pinned.
const GuardLayout = 1

// Guard holds the programs that look up the addresses of packets beside and in a tunnel, and
// their maps. They do nothing until they are attached.
type Guard struct{ objects guardObjects }

// GuardCount counts the packets of one class. The packets of a train count each.
type GuardCount struct {
	Passed, Dropped uint64
	Last            GuardPacket
}

// GuardPacket is the packet that was counted last. It is zero if there was none.
type GuardPacket struct {
	Time    time.Time
	Device  int        // the index of the device by which it left
	Address netip.Addr // the prefix that was looked up
}

// GuardCounts are the counts of all classes.
type GuardCounts [GuardClassCount]GuardCount

// LoadGuard loads the programs with the maps that are pinned in a directory of a BPF file system,
// or pins new ones there. Without a directory the maps end with the programs. It needs CAP_BPF
// and CAP_NET_ADMIN, and before Linux 5.11 CAP_SYS_RESOURCE if RLIMIT_MEMLOCK is low. Without
// them errors.Is(err, os.ErrPermission).
func LoadGuard(pinDir string) (*Guard, error) {
	spec, err := loadGuard()
	if err != nil {
		return nil, fmt.Errorf("reading the eBPF program guard: %w", err)
	}
	if pinDir != "" {
		for _, m := range spec.Maps {
			m.Pinning = ebpf.PinByName
		}
	}
	// If the limit cannot be raised, it may still be high enough. Otherwise the load fails.
	_ = rlimit.RemoveMemlock()
	g := &Guard{}
	if err := spec.LoadAndAssign(&g.objects, &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: pinDir}}); err != nil {
		return nil, explainLoadError("guard", err)
	}
	return g, nil
}

// Ethernet is the program for tc egress of devices whose packets begin with an Ethernet header.
// It returns TCX_NEXT or TCX_DROP.
func (g *Guard) Ethernet() *ebpf.Program { return g.objects.GuardEthernet }

// IP is the program for tc egress of all other devices. It returns TCX_NEXT or TCX_DROP.
func (g *Guard) IP() *ebpf.Program { return g.objects.GuardIp }

// Tunnel is the program for tc egress of the tunnel. It always returns TCX_NEXT.
func (g *Guard) Tunnel() *ebpf.Program { return g.objects.GuardTunnel }

// SetPrefixes sets the classes of all prefixes, which are masked ones. Meanwhile each address has
// either its old class or its new one. So it does after an error, and the next call completes the
// change. If there are too many prefixes, errors.Is(err, ErrFull).
func (g *Guard) SetPrefixes(wanted map[netip.Prefix]GuardClass) error {
	present, err := g.Prefixes()
	if err != nil {
		return err
	}
	puts, removals := guardChanges(present, wanted)
	for _, p := range puts {
		if err := explainPutError(g.objects.GuardPrefixes.Put(guardKey(p), uint32(wanted[p]))); err != nil {
			return fmt.Errorf("setting the prefix %s in the guard: %w", p, err)
		}
	}
	for _, p := range removals {
		if err := ignoreNotExist(g.objects.GuardPrefixes.Delete(guardKey(p))); err != nil {
			return fmt.Errorf("removing the prefix %s from the guard: %w", p, err)
		}
	}
	return nil
}

// guardChanges returns the prefixes to set, and those to remove afterwards. The longest prefixes
// are set first, and the shortest removed first. So no address has a class for a while that is
// neither its old nor its new one.
func guardChanges(present, wanted map[netip.Prefix]GuardClass) (puts, removals []netip.Prefix) {
	for p, class := range wanted {
		if old, ok := present[p]; !ok || old != class {
			puts = append(puts, p)
		}
	}
	for p := range present {
		if _, ok := wanted[p]; !ok {
			removals = append(removals, p)
		}
	}
	slices.SortFunc(puts, func(a, b netip.Prefix) int { return b.Bits() - a.Bits() })
	slices.SortFunc(removals, func(a, b netip.Prefix) int { return a.Bits() - b.Bits() })
	return puts, removals
}

// Prefixes returns all prefixes with their class.
func (g *Guard) Prefixes() (map[netip.Prefix]GuardClass, error) {
	all := map[netip.Prefix]GuardClass{}
	var key guardGuardPrefix
	var class uint32
	for entries := g.objects.GuardPrefixes.Iterate(); ; {
		if !entries.Next(&key, &class) {
			if err := entries.Err(); err != nil {
				return nil, fmt.Errorf("reading the guard's prefixes: %w", err)
			}
			return all, nil
		}
		all[netip.PrefixFrom(key.addr(), int(key.Bits)-guardVersionBits)] = GuardClass(class)
	}
}

// SetStrict sets whether packets beside the tunnel are dropped if their destination is
// GuardClassRemote or GuardClassUnknown.
func (g *Guard) SetStrict(strict bool) error {
	value := uint32(0)
	if strict {
		value = 1
	}
	if err := g.objects.GuardStrict.Put(uint32(0), value); err != nil {
		return fmt.Errorf("setting the guard's strict state: %w", err)
	}
	return nil
}

// Strict returns what SetStrict has set; false at first.
func (g *Guard) Strict() (bool, error) {
	var value uint32
	if err := g.objects.GuardStrict.Lookup(uint32(0), &value); err != nil {
		return false, fmt.Errorf("reading the guard's strict state: %w", err)
	}
	return value != 0, nil
}

// Counts returns two counts of packets. The first is of packets that left beside the tunnel, by
// the class of their destination, without GuardClassNone. The second is of packets that entered
// the tunnel, by the class of their source. They begin when the maps are pinned.
func (g *Guard) Counts() (beside, tunneled GuardCounts, err error) {
	for class := range GuardClassCount {
		var errs [2]error
		beside[class], errs[0] = g.count(class)
		tunneled[class], errs[1] = g.count(GuardClassCount + class)
		if err := errors.Join(errs[:]...); err != nil {
			return beside, tunneled, fmt.Errorf("reading the guard's counts: %w", err)
		}
	}
	return beside, tunneled, nil
}

func (g *Guard) count(key int) (sum GuardCount, err error) {
	var cpus []guardGuardCount
	if err := g.objects.GuardCounts.Lookup(uint32(key), &cpus); err != nil {
		return sum, err
	}
	latest := &guardGuardCount{}
	for i := range cpus {
		sum.Passed += cpus[i].Passed
		sum.Dropped += cpus[i].Dropped
		if cpus[i].At > latest.At {
			latest = &cpus[i]
		}
	}
	if latest.At != 0 {
		last := latest.Last
		sum.Last = GuardPacket{Time: timeOf(latest.At), Device: int(latest.Ifindex), Address: last.addr()}
	}
	return sum, nil
}

// Close closes programs and maps. Attached programs and pinned maps stay.
func (g *Guard) Close() error { return g.objects.Close() }

// guardVersionBits are the bits of a key in front of the address.
const guardVersionBits = 32

func guardKey(p netip.Prefix) guardGuardPrefix {
	key := guardGuardPrefix{Bits: uint32(guardVersionBits + p.Bits()), Version: 6}
	if p.Addr().Is4() {
		key.Version = 4
	}
	copy(key.Address[:], p.Addr().AsSlice())
	return key
}

func (p guardGuardPrefix) addr() netip.Addr {
	if p.Version == 4 {
		return netip.AddrFrom4([4]byte(p.Address[:4]))
	}
	return netip.AddrFrom16(p.Address)
}

// timeOf returns the time that CLOCK_MONOTONIC had as ns nanoseconds.
func timeOf(ns uint64) time.Time {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) != nil {
		return time.Time{}
	}
	return time.Now().Add(time.Duration(int64(ns) - now.Nano()))
}
