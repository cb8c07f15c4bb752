// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// fakeSets simulates the commands for features and counters. Of its 40 features 33 is fixed, 34 unavailable and 35 on.
type fakeSets struct {
	names    map[uint32][]string
	values   []uint64
	grows    int // names added before the second request
	set      []byte
	features map[int]uint32 // 32-bit masks, by their index
}

func newFakeSets() *fakeSets {
	f := &fakeSets{names: map[uint32][]string{setStats: {"rx_0 packets", "tx\x1b0"}}, values: []uint64{7, 1 << 40}}
	for i := range 40 {
		f.names[setFeatures] = append(f.names[setFeatures], fmt.Sprintf("feature-%d", i))
	}
	f.names[setFeatures][39] = ""                                                        // a bit without a name
	f.features = map[int]uint32{0: 1<<32 - 1, 4: 0xff &^ (1 << 2), 6: 1 << 3, 7: 1 << 1} // available, and of the second block active, never changed
	return f
}

func (f *fakeSets) call(b []byte) error {
	put := func(offset, v int) { binary.NativeEndian.PutUint32(b[offset:], uint32(v)) }
	switch uint32At(b, 0) {
	case unix.ETHTOOL_GSSET_INFO:
		for set, names := range f.names {
			if binary.NativeEndian.Uint64(b[8:]) == 1<<set {
				put(16, len(names))
				return nil
			}
		}
		binary.NativeEndian.PutUint64(b[8:], 0)
	case unix.ETHTOOL_GSTRINGS:
		names := f.names[uint32At(b, 4)]
		put(8, len(names)+f.grows)
		for i, name := range names {
			copy(b[12+32*i:][:32], name)
		}
	case unix.ETHTOOL_GSTATS:
		put(4, len(f.values))
		for i, v := range f.values {
			binary.NativeEndian.PutUint64(b[8+8*i:], v)
		}
	case unix.ETHTOOL_GFEATURES:
		for i, v := range f.features {
			put(8+4*i, int(v))
		}
	case unix.ETHTOOL_SFEATURES:
		f.set = slices.Clone(b)
	}
	return nil
}

func TestFeaturesFollowKernelBits(t *testing.T) {
	got, err := features(newFakeSets().call)
	if err != nil || len(got) != 39 {
		t.Fatalf("%d features, %v", len(got), err)
	}
	for name, want := range map[string]Feature{
		"feature-0": {}, "feature-31": {}, "feature-33": {Fixed: true}, "feature-34": {Fixed: true}, "feature-35": {On: true},
	} {
		if got[name] != want {
			t.Errorf("%s: got %+v, want %+v", name, got[name], want)
		}
	}
}

func TestSetFeatureSetsOneBit(t *testing.T) {
	for _, on := range []bool{false, true} {
		f := newFakeSets()
		if err := setFeature(f.call, "feature-35", on); err != nil {
			t.Fatal(err)
		}
		want := request(unix.ETHTOOL_SFEATURES, 24)
		want[4], want[16] = 2, 1<<3
		if on {
			want[20] = 1 << 3
		}
		if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 && !slices.Equal(f.set, want) {
			t.Errorf("on %v: got % x, want % x", on, f.set, want)
		}
	}
	if err := setFeature(newFakeSets().call, "absent", true); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Error(err)
	}
}

func TestCountersHaveDriverNames(t *testing.T) {
	got, err := counters(newFakeSets().call)
	if diff := cmp.Diff(map[string]uint64{"rx_0 packets": 7, "tx?0": 1 << 40}, got); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
}

func TestMismatchedNamesAndValuesAreRejected(t *testing.T) {
	for name, corrupt := range map[string]func(*fakeSets){
		"more names":     func(f *fakeSets) { f.grows = 1 },
		"more values":    func(f *fakeSets) { f.values = append(f.values, 1) },
		"no values":      func(f *fakeSets) { f.values = nil },
		"too many names": func(f *fakeSets) { f.names[setStats] = make([]string, maxStrings+1) },
	} {
		f := newFakeSets()
		corrupt(f)
		if got, err := counters(f.call); !errors.Is(err, errInconsistent) || got != nil {
			t.Errorf("%s: got %v, error %v, want nil, %v", name, got, err, errInconsistent)
		}
	}
	f := newFakeSets()
	delete(f.names, setStats)
	if _, err := counters(f.call); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Error(err)
	}
}

func TestQueueSettingsMatchKernelLayout(t *testing.T) {
	answer := func(words map[int]uint32) ethtool {
		return func(b []byte) error {
			for i, w := range words {
				binary.NativeEndian.PutUint32(b[4*i:], w)
			}
			return nil
		}
	}
	if c, err := channels(answer(map[int]uint32{1: 8, 4: 16, 5: 2, 8: 4})); err != nil || c != (Channels{RX: 2, MaxRX: 8, Combined: 4, MaxCombined: 16}) {
		t.Errorf("got %+v, error %v, want %+v, no error", c, err, (Channels{RX: 2, MaxRX: 8, Combined: 4, MaxCombined: 16}))
	}
	if r, err := rings(answer(map[int]uint32{1: 4096, 4: 2048, 5: 512, 8: 256})); err != nil || r != (Rings{RX: 512, MaxRX: 4096, TX: 256, MaxTX: 2048}) {
		t.Errorf("got %+v, error %v, want %+v, no error", r, err, (Rings{RX: 512, MaxRX: 4096, TX: 256, MaxTX: 2048}))
	}
	if c, err := coalescing(answer(map[int]uint32{1: 50, 10: 1})); err != nil || c != (Coalescing{RX: 50 * time.Microsecond, Adaptive: true}) {
		t.Errorf("got %+v, error %v, want %+v, no error", c, err, (Coalescing{RX: 50 * time.Microsecond, Adaptive: true}))
	}
	if _, err := channels(answer(map[int]uint32{8: 1<<32 - 1})); !errors.Is(err, errInconsistent) {
		t.Error(err)
	}
	if _, err := rings(answer(map[int]uint32{1: 1 << 31})); !errors.Is(err, errInconsistent) {
		t.Error(err)
	}
}

func TestSetUDPFieldsMatchesReadFields(t *testing.T) {
	for fields, want := range map[spread.Fields]uint64{spread.FourTuple: 0xf0, spread.AddressesOnly: 0x30} {
		for _, family := range Families() {
			n := goodNIC()
			if err := setFields(n.call, flowOf(family), fields); err != nil {
				t.Fatal(err)
			}
			b := n.last[unix.ETHTOOL_SRXFH]
			if flow := map[Family]uint32{IPv4: 2, IPv6: 6}[family]; uint32At(b, 4) != flow || binary.NativeEndian.Uint64(b[8:]) != want {
				t.Errorf("%v, %v: got % x", family, fields, b[:16])
			}
		}
	}
	if err := setFields(goodNIC().call, udpV4Flow, spread.OtherFields); !errors.Is(err, unix.EINVAL) {
		t.Error(err)
	}
}

func TestVethFeaturesAreReadAndSet(t *testing.T) {
	enterNamespace(t)
	addVeth(t, "left0", "right0")
	const list = "rx-gro-list"
	for _, on := range []bool{true, false} {
		if err := SetFeature("left0", list, on); err != nil {
			t.Fatal(err)
		}
		if all, err := ReadFeatures("left0"); err != nil || all[list] != (Feature{On: on}) || !all["loopback"].Fixed {
			t.Errorf("%s %+v, loopback %+v, %v", list, all[list], all["loopback"], err)
		}
	}
	// A veth reports its channels since Linux 5.13.
	if c, err := ReadChannels("left0"); !errors.Is(err, unix.EOPNOTSUPP) && (err != nil || c.MaxRX < 1) {
		t.Errorf("got %+v, error %v", c, err)
	}
	if all, err := ReadCounters("left0"); err != nil || len(all) == 0 {
		t.Errorf("got %v, error %v, want no error", all, err)
	}
	for what, err := range map[string]error{
		"rings":  errOf(ReadRings("left0")),
		"fields": SetUDPFields("left0", IPv4, spread.FourTuple),
	} {
		if !errors.Is(err, unix.EOPNOTSUPP) {
			t.Errorf("%s: got error %v, want %v", what, err, unix.EOPNOTSUPP)
		}
	}
	if _, err := ReadFeatures("absent0"); !errors.Is(err, unix.ENODEV) {
		t.Error(err)
	}
}

func errOf[T any](_ T, err error) error { return err }

func FuzzEthtoolAnswers(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, 4096))
	f.Fuzz(func(_ *testing.T, answers []byte) {
		call := func(b []byte) error {
			n := copy(b[4:], answers)
			answers = answers[n:]
			return nil
		}
		_, _ = features(call)
		_, _ = counters(call)
		_ = setFeature(call, "x", true)
		_, _ = channels(call)
		_, _ = rings(call)
		_, _ = coalescing(call)
	})
}

func TestDriverInfoHasFirmwareAndBus(t *testing.T) {
	call := func(b []byte) error {
		for i, text := range []string{"ice", "6.18.0", "4.40 0x8001c967\x07", "0000:03:00.0"} {
			copy(b[4+32*i:], text)
		}
		copy(b[100:], strings.Repeat("b", 40)) // not terminated, and the next field
		return nil
	}
	got, err := driverInfo(call)
	if want := (DriverInfo{"ice", "6.18.0", "4.40 0x8001c967?", strings.Repeat("b", 32)}); err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if _, err := driverInfo(func([]byte) error { return unix.EOPNOTSUPP }); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("got %v, want EOPNOTSUPP", err)
	}
}
