// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

func TestSockaddrsSurviveTheRoundTrip(t *testing.T) {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		for _, to := range []underlay.Endpoint{
			{Dst: netip.MustParseAddrPort("192.0.2.1:51820")},
			{Dst: netip.MustParseAddrPort("[2001:db8::1]:1")},
			{Dst: netip.MustParseAddrPort("[fe80::1]:65535"), Scope: 1 << 30},
		} {
			var b sockaddr
			n := putSockaddr(&b, family, &to)
			if family == unix.AF_INET && to.Dst.Addr().Is6() {
				if n != 0 {
					t.Errorf("%v fits an IPv4 socket", to.Dst)
				}
				continue
			}
			if dst, scope := parseSockaddr(b[:n]); dst != to.Dst || scope != to.Scope {
				t.Errorf("family %d: %v scope %d became %v scope %d", family, to.Dst, to.Scope, dst, scope)
			}
		}
	}
}

func TestKernelReleaseDecidesGRO(t *testing.T) {
	for release, want := range map[string]bool{
		"5.10.0-28-amd64": false, "5.11.22": false, "5.12": true, "5.12-rc1": true, "5.4.0": false, "4.19.1": false,
		"6.1.0": true, "7.2-rc1+": true, "": true, "x.y": true, "-1.2": true, "5.": true, "99999999999999999999.1": true,
	} {
		if got := groUsable(release); got != want {
			t.Errorf("%q: got %v, want %v", release, got, want)
		}
	}
}

func TestControlMessagesAreParsed(t *testing.T) {
	b := make([]byte, rxControlSize)
	_, n := putCmsg(b, unix.SOL_SOCKET, unix.SO_TIMESTAMP, 3) // unknown, and not a multiple of the word size
	n += putSource(b[n:], netip.MustParseAddr("192.0.2.1"), 0)
	data, size := putCmsg(b[n:], unix.SOL_UDP, unix.UDP_GRO, 4)
	data[0], data[1], data[2], data[3] = 100, 0, 0, 0 // little endian, as on amd64 and arm64
	n += size
	d := underlay.Datagrams{N: 250, SegSize: 250}
	parseControl(b[:n], &d)
	if d.SegSize != 100 || d.From.Src != netip.MustParseAddr("192.0.2.1") {
		t.Errorf("got %+v, want SegSize 100, From.Src %v", d, netip.MustParseAddr("192.0.2.1"))
	}
	short := underlay.Datagrams{N: 50, SegSize: 50}
	if parseControl(b[:n], &short); short.SegSize != 50 {
		t.Errorf("SegSize %d exceeds the payload", short.SegSize)
	}
}

func TestTrafficClassesAreReadInBothFamilies(t *testing.T) {
	for name, c := range map[string]struct {
		level, kind int
		data        []byte
		want        packet.ECN
	}{
		"IPv4":           {unix.SOL_IP, unix.IP_TOS, []byte{0xb8 | 3}, packet.CE},
		"IPv4 as an int": {unix.SOL_IP, unix.IP_TOS, []byte{2, 0, 0, 0}, packet.ECT0},
		"IPv4 empty":     {unix.SOL_IP, unix.IP_TOS, nil, packet.NotECT},
		"IPv6":           {unix.SOL_IPV6, unix.IPV6_TCLASS, []byte{0xb9, 0, 0, 0}, packet.ECT1},
		"IPv6 too short": {unix.SOL_IPV6, unix.IPV6_TCLASS, []byte{3, 0, 0}, packet.NotECT},
	} {
		b := make([]byte, rxControlSize)
		data, n := putCmsg(b, c.level, c.kind, len(c.data))
		copy(data, c.data)
		var d underlay.Datagrams
		if parseControl(b[:n], &d); d.ECN != c.want {
			t.Errorf("%s: got %d, want %d", name, d.ECN, c.want)
		}
	}
}

func TestLargestControlDataFits(t *testing.T) {
	out := newSendBatch(1)
	to := underlay.Endpoint{Dst: netip.MustParseAddrPort("[2001:db8::2]:1"), Src: netip.MustParseAddr("2001:db8::1")}
	if !out.start(unix.AF_INET6, &to, origin{segment: 1452, tos: uint8(packet.ECT0)}) {
		t.Fatal("refused")
	}
	if n := int(out.msgs[0].hdr.Controllen); n > txControlSize {
		t.Errorf("%d bytes of control data, room for %d", n, txControlSize)
	}
}

func FuzzControlMessages(f *testing.F) {
	var b [txControlSize]byte
	n := putSource(b[:], netip.MustParseAddr("2001:db8::1"), 3)
	n += putSegmentSize(b[n:], 1452)
	n += putTOS(b[n:], false, uint8(packet.CE))
	f.Add(b[:n], 3000)
	f.Add(b[:n-1], 0)
	f.Add([]byte{}, 1)
	f.Fuzz(func(t *testing.T, control []byte, n int) {
		n = max(n, 0)
		d := underlay.Datagrams{N: n, SegSize: n}
		parseControl(control, &d)
		if d.SegSize > n || n > 0 && d.SegSize < 1 || d.From.Src.Is4In6() || d.ECN > packet.CE {
			t.Fatalf("N %d gives SegSize %d, source %v, ECN %d", n, d.SegSize, d.From.Src, d.ECN)
		}
	})
}

func FuzzSockaddr(f *testing.F) {
	var b sockaddr
	to := underlay.Endpoint{Dst: netip.MustParseAddrPort("[2001:db8::1]:1")}
	f.Add(b[:putSockaddr(&b, unix.AF_INET6, &to)])
	f.Add(b[:3])
	f.Fuzz(func(t *testing.T, raw []byte) {
		if dst, _ := parseSockaddr(raw); dst.Addr().Is4In6() || dst.Addr().Zone() != "" {
			t.Fatalf("got %v", dst)
		}
	})
}

func FuzzRelease(f *testing.F) {
	f.Add("6.18.44-v1")
	f.Add("5.")
	f.Add("7.1.0-070100rc1-generic")
	f.Fuzz(func(t *testing.T, release string) {
		if selectionReplaceable(release, "") != selectionReplaceable(release, "#1 SMP PREEMPT_DYNAMIC") {
			t.Fatalf("%q: an irrelevant version changes the result", release)
		}
		if selectionReplaceable(release+"-rc1", "") || selectionReplaceable(release, " Debian 7.1~rc1-1") {
			t.Fatalf("%q: a release candidate counts as safe", release)
		}
	})
}

// TestSelectionIsReplaceableOnlyOnFixedKernels has the first fixed release of each series by the CVE's record, and the
// distributions' numbering schemes.
func TestSelectionIsReplaceableOnlyOnFixedKernels(t *testing.T) {
	for _, c := range []struct {
		release, version string
		want             bool
	}{
		{"5.10.258", "", false},
		{"5.10.259", "", true},
		{"5.15.209", "", false},
		{"5.15.210", "", true},
		{"6.1.175", "", false},
		{"6.1.176", "", true},
		{"6.6.142", "", false},
		{"6.6.143", "", true},
		{"6.12.93", "", false},
		{"6.12.94-arch1-1", "", true},
		{"6.18.35", "", false},
		{"6.18.44-fc-v669", "#1 SMP PREEMPT_DYNAMIC @0", true},
		{"7.0.12", "", false},
		{"7.0.13", "", true},
		{"7.1.0", "", true},
		{"7.1", "", true},
		{"7.2.13+deb14-cloud-amd64", "", true},
		{"8.0.1", "", true},
		{"7.1.0-rc1", "", false},
		{"7.2-rc3", "", false}, // some of these have the fix
		{"7.1.0-0.rc1.20260501git0123456789ab.10.fc45.x86_64", "", false},
		{"7.1.0-070100rc1-generic", "#202605010000 SMP PREEMPT_DYNAMIC", false},
		{"7.1.0-rc2-next-20260520", "", false},
		{"7.1~rc2-amd64", "#1 SMP Debian 7.1.2-1 (2026-07-01)", false}, // release and version contradict each other
		{"7.1.3-arch1-1", "#1 SMP PREEMPT_DYNAMIC", true},
		{"6.12.94+rpt-rpi-v8", "#1 SMP PREEMPT Debian 1:6.12.94-1+rpt1 (2026-07-01)", true},
		{"6.12.93+rpt-rpi-v8", "#1 SMP PREEMPT Debian 1:6.12.93-1+rpt1 (2026-07-01)", false},
		{"2.6.78-50-amd64", "", false}, // uname26
		{"6.12.99999999999999999999", "", false},
		{"6.-12.94", "", false},
		{"+6.12.94", "", false},
		{"4.19.400", "", false},
		{"5.14.0-611.el9.x86_64", "", false},
		{"6.17.13", "", false},
		{"6.19.14", "", false}, // never fixed, or unknown
		{"5.15.0-210-generic", "#220-Ubuntu SMP", false},
		{"6.8.0-90-generic", "#91-Ubuntu SMP", false},
		{"5.10.0-46-cloud-amd64", "#1 SMP Debian 5.10.258-1 (2026-05-31)", false},
		{"5.10.0-46-cloud-amd64", "#1 SMP Debian 5.10.259-1 (2026-07-31)", true},
		{"6.1.0-56-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.176-1 (2026-11-16)", true},
		{"7.1-amd64", "#1 SMP Debian 7.1~rc2-1~exp1 (2026-05-10)", false},
		{"", "", false},
		{"6", "", false},
		{"x.y.z", "", false},
		{"6.12.", "", false},
		{"6.12.x", "", false},
		{"5.10.259", "#1 SMP Debian ", false},
	} {
		if got := selectionReplaceable(c.release, c.version); got != c.want {
			t.Errorf("%q %q: got %v, want %v", c.release, c.version, got, c.want)
		}
	}
}
