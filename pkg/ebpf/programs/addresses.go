// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
)

// SetAddresses sets the addresses of this host. Only messages from one of them are spread, and only datagrams to one of them are gathered. The
// present ones stay without interruption. The zone of a link-local address is its device's index. If there are too many, errors.Is(err, ErrFull), and the last ones are missing.
func (s *State) SetAddresses(addresses []netip.Addr) error {
	keys := make([]netip.Addr, len(addresses))
	for i, a := range addresses {
		keys[i] = withZone(a)
	}
	return setAddresses(s.maps.Addresses, keys)
}

// setAddresses makes a map contain these addresses only. It ignores invalid ones.
func setAddresses(m *ebpf.Map, addresses []netip.Addr) error {
	old, next := map[[16]byte]bool{}, make(map[[16]byte]bool, len(addresses))
	if err := forEachEntry(m, func(key *[16]byte, _ *uint8) { old[*key] = true }); err != nil {
		return fmt.Errorf("reading this host's addresses: %w", err)
	}
	for _, a := range addresses {
		if a.IsValid() {
			next[a.As16()] = true
		}
	}
	for key := range old { // first, to make room
		if next[key] {
			continue
		}
		if err := ignoreNotExist(m.Delete(&key)); err != nil {
			return fmt.Errorf("removing this host's address %v from an eBPF map: %w", netip.AddrFrom16(key), err)
		}
	}
	for _, a := range addresses {
		key := a.As16()
		if old[key] || !next[key] {
			continue
		}
		if err := explainPutError(m.Put(&key, present)); err != nil {
			return fmt.Errorf("adding this host's address %v to an eBPF map: %w", a, err)
		}
	}
	return nil
}
