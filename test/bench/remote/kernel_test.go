// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/lab/testbed"
	"github.com/ropewalk/ropewalk/test/expect"
)

func TestKernelEndsReachEachOtherAndLeaveNothing(t *testing.T) {
	lab, err := netlab.New("kernelends")
	if errors.Is(err, netlab.ErrPrivileges) {
		t.Skip(err)
	}
	expect.NoError(t, err)
	t.Cleanup(func() { expect.NoError(t, lab.Close()) })
	probe, err := lab.Host("probe")
	expect.NoError(t, err)
	if err := probe.AddWireGuard("wg0"); errors.Is(err, unix.EOPNOTSUPP) {
		t.Skipf("this kernel has no WireGuard (make test-kernels runs kernels that have): %v", err)
	}
	a, err := lab.Host("a")
	expect.NoError(t, err)
	b, err := lab.Host("b")
	expect.NoError(t, err)
	addrs := []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("192.0.2.2/24")}
	_, err = lab.Cable(a, b, netlab.CableConfig{AddrsA: addrs[:1], AddrsB: addrs[1:]})
	expect.NoError(t, err)
	c := testbed.EndConfig{
		Prefix: "kernelend", Kernel: configureKernel, Traffic: []string{ropewalk.Need(t), "traffic"}, MTU: 1400, Port: 51833,
		Far: netip.AddrPortFrom(addrs[1].Addr(), 51833),
	}
	open := func(h *netlab.Host, c testbed.EndConfig) (e *testbed.End) {
		expect.NoError(t, h.Do(func() (err error) {
			e, err = testbed.OpenEnd(t.Context(), c)
			return err
		}))
		return e
	}
	near := open(a, c)
	c.Far = netip.AddrPortFrom(netip.IPv6Unspecified(), 51833)
	far := open(b, c)
	expect.EventuallyNoError(t, "an answer through the tunnel", func() error {
		rtts, _, err := near.Ping(t.Context(), testbed.FarAddr(), time.Time{}, 1, time.Second)
		if err == nil && len(rtts) == 0 {
			err = errors.New("no answer")
		}
		return err
	})
	expect.NoError(t, near.Close())
	expect.NoError(t, far.Close())
}
