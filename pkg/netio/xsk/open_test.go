// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestConfigRejectsInvalidValues(t *testing.T) {
	bad := []Config{
		{Interface: 0},
		{Interface: 1, Queue: -1},
		{Interface: 1, Queue: 1 << 16},
		{Interface: 1, Mode: 9},
		{Interface: 1, FrameSize: 1024},
		{Interface: 1, FrameSize: 3000},
		{Interface: 1, RxFrames: 100},
		{Interface: 1, TxFrames: 32},
		{Interface: 1, TxFrames: 1 << 17},
		{Interface: 1, RxFrames: -64},
	}
	for _, c := range bad {
		if _, err := c.complete(4096); err == nil {
			t.Errorf("%+v: got no error from complete", c)
		}
		if _, err := Open(c); err == nil {
			t.Errorf("%+v: Open got no error", c)
		}
	}
	if _, err := (Config{Interface: 1, FrameSize: 4096}).complete(2048); err == nil {
		t.Error("a frame larger than a page: got no error")
	}
	c, err := Config{Interface: 1}.complete(4096)
	if err != nil || c.FrameSize != 2048 || c.RxFrames != 2048 || c.TxFrames != 2048 {
		t.Errorf("got defaults %+v, error %v", c, err)
	}
}

func TestBindFlagsAndReportedModes(t *testing.T) {
	tests := []struct {
		mode, want Mode
		zc         bool
		flags      uint16
	}{
		{Auto, Copy, false, unix.XDP_USE_NEED_WAKEUP},
		{Auto, ZeroCopy, true, unix.XDP_USE_NEED_WAKEUP},
		{ZeroCopy, ZeroCopy, true, unix.XDP_USE_NEED_WAKEUP | unix.XDP_ZEROCOPY},
		{Copy, Copy, false, unix.XDP_USE_NEED_WAKEUP | unix.XDP_COPY},
	}
	for _, test := range tests {
		f := newFake(t)
		f.zc = test.zc
		s := openFake(t, f, Config{Mode: test.mode})
		if got := s.Features().Mode; got != test.want || !slices.Equal(f.binds, []uint16{test.flags}) {
			t.Errorf("mode %v: got mode %v with bind flags %v", test.mode, got, f.binds)
		}
	}
	for m, want := range []string{"auto", "zerocopy", "copy", "unknown"} {
		if Mode(m).String() != want {
			t.Errorf("mode %d: got name %q", m, Mode(m))
		}
	}
}

// TestOldKernelsLoseOnlyUnsupportedFeatures rejects the options one by one.
func TestOldKernelsLoseOnlyUnsupportedFeatures(t *testing.T) {
	all := Features{Mode: Copy, TxChecksum: true}
	tests := []struct {
		name   string
		option int
		want   func(f *Features)
	}{
		{"all features", 0, func(*Features) {}},
		{"no budget", unix.XDP_MAX_TX_SKB_BUDGET, func(*Features) {}},
		{"no metadata", unix.XDP_UMEM_REG, func(f *Features) { f.TxChecksum = false }},
		{"no right to a large buffer", unix.SO_SNDBUFFORCE, func(*Features) {}},
	}
	for _, test := range tests {
		f := newFake(t)
		f.refuses[test.option] = unix.EINVAL
		s := openFake(t, f, Config{TxChecksum: true})
		want := all
		test.want(&want)
		if got := s.Features(); got != want {
			t.Errorf("%s: got %+v, want %+v", test.name, got, want)
		}
	}
}

// TestZeroCopyFollowsDeviceCapabilities checks that no feature is used that the driver does not announce. A driver that ignores a request
// would send packets with bad checksums.
func TestZeroCopyFollowsDeviceCapabilities(t *testing.T) {
	for _, device := range []Capabilities{{}, {TxChecksum: true}} {
		f := newFake(t)
		f.zc, f.device = true, device
		s := openFake(t, f, Config{TxChecksum: true})
		if s.Features().TxChecksum != device.TxChecksum {
			t.Errorf("device %+v: got %+v", device, s.Features())
		}
	}
}

// TestHugePagesAreUsedWhenAvailable also tests a UMEM that does not fill its last huge page.
func TestHugePagesAreUsedWhenAvailable(t *testing.T) {
	const odd = (1024 + 64) * 2048
	for _, test := range []struct {
		config       Config
		there        bool
		mapped, used int
	}{
		{Config{RxFrames: 1024}, true, 2 * hugePage, odd},
		{Config{RxFrames: 1024}, false, odd, odd},
		{Config{}, true, 128 * 2048, 128 * 2048}, // smallConfig: 64+64 frames, a huge page would be mostly empty
	} {
		f := newFake(t)
		f.huge = test.there
		openFake(t, f, test.config)
		if len(f.umem) != test.mapped || int(f.reg.Len) != test.used {
			t.Errorf("%+v: %d mapped, %d registered", test, len(f.umem), f.reg.Len)
		}
	}
}

func TestBindErrorsAreDistinct(t *testing.T) {
	tests := []struct {
		err  error
		mode Mode
		want error
	}{
		{unix.EBUSY, Auto, ErrBusy},
		{unix.EINVAL, Auto, ErrNoQueue},
		{unix.EINVAL, ZeroCopy, unix.EINVAL},
		{unix.ENODEV, Auto, ErrGone},
		{unix.ENETDOWN, Auto, ErrDown},
		{unix.EOPNOTSUPP, ZeroCopy, errors.ErrUnsupported},
	}
	sentinels := []error{ErrNoQueue, ErrGone, ErrDown, ErrBusy, ErrQueueGone}
	for _, test := range tests {
		f := newFake(t)
		f.onBind = func(uint16) error { return test.err }
		_, err := open(smallConfig(Config{Mode: test.mode}), f)
		if !errors.Is(err, test.want) || f.live != 0 {
			t.Errorf("%v: got error %v, %d descriptors leaked", test.err, err, f.live)
		}
		for _, other := range sentinels {
			if !errors.Is(test.want, other) && errors.Is(err, other) {
				t.Errorf("%v: got error %v, which also wraps %v", test.err, err, other)
			}
		}
	}
}

func TestSetUpErrorsNameRemedy(t *testing.T) {
	if err := explainSocket(unix.EPERM); !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), "CAP_NET_RAW") {
		t.Error(err)
	}
	if err := explainSocket(unix.EAFNOSUPPORT); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
	if err := explainRegister(unix.ENOBUFS); !errors.Is(err, unix.ENOBUFS) || !strings.Contains(err.Error(), "ulimit -l") {
		t.Error(err)
	}
}

func TestRingsBeyondTheirMappingAreRejected(t *testing.T) {
	mem := make([]byte, 4096)
	good := unix.XDPRingOffset{Producer: 0, Consumer: 64, Flags: 68, Desc: 128}
	if _, items, err := ringView[Desc](mem, &good, 248); err != nil || len(items) != 248 {
		t.Errorf("%d items, %v", len(items), err)
	}
	for _, change := range []func(*unix.XDPRingOffset){
		func(o *unix.XDPRingOffset) { o.Producer = 2 },
		func(o *unix.XDPRingOffset) { o.Consumer = 4094 },
		func(o *unix.XDPRingOffset) { o.Flags = ^uint64(0) - 3 },
		func(o *unix.XDPRingOffset) { o.Desc = 129 },
		func(o *unix.XDPRingOffset) { o.Desc = 4096 + 64 },
		func(o *unix.XDPRingOffset) { o.Desc = 136 },
		func(o *unix.XDPRingOffset) { o.Desc = 1 << 63 },
	} {
		bad := good
		change(&bad)
		if _, _, err := ringView[Desc](mem, &bad, 248); err == nil {
			t.Errorf("%+v: got no error", bad)
		}
	}
	if uint32View(nil, 0) != nil {
		t.Error("an offset in an empty mapping was accepted")
	}
}
