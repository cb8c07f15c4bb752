// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"bytes"
	"errors"
	"maps"
	"net/netip"
	"testing"

	"github.com/ropewalk/ropewalk/test/expect"
)

const (
	pod4, pod6 = "10.244.7.7:51820", "[2001:db8:7::7]:51820"
	// skbIngressIfindex is the word of struct __sk_buff with the device on which a forwarded packet arrived.
	skbIngressIfindex = 36 / 4
)

// TestSpreadLeavesPacketsOfOthersUnchanged has packets with the tunnel's ports that this host forwards, or that a container sends through the
// device. Fragments and the clones that become probes are no exception.
func TestSpreadLeavesPacketsOfOthersUnchanged(t *testing.T) {
	e := newProbing(t)
	forwarded := skb{skbIngressIfindex: 7}
	for name, row := range map[string]struct {
		in  []byte
		ctx skb
	}{
		"forwarded":             {data(us4, them4).bytes(), forwarded},
		"forwarded v6":          {data(us6, them6).bytes(), forwarded},
		"of a container":        {data(pod4, them4).bytes(), skb{}},
		"of a container, v6":    {data(pod6, them6).bytes(), skb{}},
		"a container's probe":   {data(pod4, them4).bytes(), probeClone(lane, 0)},
		"a container's message": {data(pod4, them4).with(func(d *datagram) { d.payload = message(1, 148) }).bytes(), skb{}},
	} {
		before, state := counters(t, e.Spread), e.state()
		out, _, refused := runTC(t, e.Egress(), row.in, row.ctx)
		if refused {
			t.Logf("%s: the kernel refuses the context", name)
			continue
		}
		if !bytes.Equal(out, row.in) {
			t.Errorf("%s: % x\nbecame\n% x", name, row.in, out)
		}
		if got := counted(t, e.Spread, before); len(got) != 0 {
			t.Errorf("%s: counted %v, want nothing", name, got)
		}
		if got := e.state(); got != state {
			t.Errorf("%s: the state of the peer's probes changed from %+v to %+v", name, state, got)
		}
	}
}

// TestGatherLeavesPacketsToOthersUnchanged has packets to another WireGuard, to which this host forwards.
func TestGatherLeavesPacketsToOthersUnchanged(t *testing.T) {
	s := newGather(t)
	eachGather(t, s, func(t *testing.T, run func([]byte, skb) ([]byte, bool)) {
		for _, in := range [][]byte{
			data(from(them4, gathers), pod4).bytes(), data(from(them6, gathers), pod6).bytes(), data(them4, from(pod4, lane)).bytes(),
			tooBig(pod6, data(from(pod6, lane), them6).bytes()[14:]),
		} {
			before := counters(t, s)
			if out, _ := run(in, skb{}); !bytes.Equal(out, in) {
				t.Errorf("% x\nbecame\n% x", in, out)
			}
			if got := counted(t, s, before); len(got) != 0 {
				t.Errorf("counted %v, want nothing", got)
			}
		}
	})
}

// TestAddressesFollowTheHost adds and removes addresses while packets pass.
func TestAddressesFollowTheHost(t *testing.T) {
	s := newSpread(t, SpreadOptions{L2: true})
	expect.NoError(t, s.SetAddresses(addresses("192.0.2.77", "2001:db8:1::1", "192.0.2.77")))
	s.forgetRecentAddresses(t)
	if port, counts := sentFrom(t, s, data(us4, them4).bytes()); port != 51820 || len(counts) != 0 {
		t.Errorf("removed: got port %d, counted %v, want the packet unchanged", port, counts)
	}
	if port, _ := sentFrom(t, s, data(us6, them6).bytes()); port != lane {
		t.Errorf("kept: got port %d, want %d", port, lane)
	}
	expect.NoError(t, s.SetAddresses(addresses("::ffff:198.51.100.1", "2001:db8:1::1")))
	if port, counts := sentFrom(t, s, data(us4, them4).bytes()); port != lane || !maps.Equal(counts, once(EventSpread)) {
		t.Errorf("added: got port %d, counted %v, want %d", port, counts, lane)
	}
}

// TestTooManyAddressesKeepTheFirst has the last addresses left out, so that it does not depend on chance which.
func TestTooManyAddressesKeepTheFirst(t *testing.T) {
	s := newSpread(t, SpreadOptions{L2: true})
	all := addresses("198.51.100.1")
	for i := range int(s.maps.Addresses.MaxEntries()) {
		all = append(all, netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}))
	}
	if err := s.SetAddresses(all); !errors.Is(err, ErrFull) {
		t.Errorf("got error %v, want %v", err, ErrFull)
	}
	if port, _ := sentFrom(t, s, data(us4, them4).bytes()); port != lane {
		t.Errorf("got port %d, want %d", port, lane)
	}
}
