// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// SetAddresses sets the addresses of this host. Only messages from one of them are spread, and only datagrams to one of them are gathered. The
// present ones stay without interruption. If there are too many, errors.Is(err, ErrFull), and the last ones are missing.
func (s *State) SetAddresses(addresses []netip.Addr) error {
	old := map[spreadAddress]bool{}
	if err := forEachEntry(s.maps.Addresses, func(key *spreadAddress, _ *uint8) { old[*key] = true }); err != nil {
		return fmt.Errorf("reading this host's addresses from the eBPF map: %w", err)
	}
	next := make(map[spreadAddress]bool, len(addresses))
	for _, a := range addresses {
		next[mapAddress(a)] = true
	}
	for key := range old { // first, to make room
		if next[key] {
			continue
		}
		if err := ignoreNotExist(s.maps.Addresses.Delete(&key)); err != nil {
			return fmt.Errorf("deleting from the eBPF map of addresses: %w", err)
		}
	}
	for _, a := range addresses {
		key := mapAddress(a)
		if old[key] {
			continue
		}
		if err := explainPutError(s.maps.Addresses.Put(&key, present)); err != nil {
			return fmt.Errorf("adding this host's address %v: %w", a, err)
		}
	}
	return nil
}

// Addresses returns the addresses of this host that were set, in no order.
func (s *State) Addresses() (all []netip.Addr, err error) {
	err = forEachEntry(s.maps.Addresses, func(key *spreadAddress, _ *uint8) { all = append(all, key.address()) })
	return all, err
}

func mapAddress(a netip.Addr) (key spreadAddress) {
	for i, w := range addressWords(a) {
		key.Words[i].Raw = w
	}
	return key
}

func (k *spreadAddress) address() netip.Addr {
	var bytes [16]byte
	for i, w := range k.Words {
		binary.NativeEndian.PutUint32(bytes[4*i:], w.Raw)
	}
	return netip.AddrFrom16(bytes).Unmap()
}
