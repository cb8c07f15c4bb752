// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
	"github.com/ropewalk/ropewalk/pkg/observe/term"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/test/namespace"
)

// runSpread runs `ropewalk spread` in the calling thread.
func runSpread(args ...string) (out, errs string, err error) {
	root := newRootCmd()
	var stdout, stderr bytes.Buffer
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	root.SetArgs(append([]string{"spread"}, args...))
	err = root.Execute()
	return stdout.String(), stderr.String(), err
}

func TestSpreadFlagsBecomeAConfig(t *testing.T) {
	o := spreadAttachOptions{
		peers: []string{"192.0.2.7", "192.0.2.8:9", "2001:db8::1", "[2001:db8::2]", "[2001:db8::3]:7"},
		ports: "61000-61015", peerPorts: "62000-62015", gather: "xdp",
		cfg: spreader.Config{Port: 51820, Lanes: 4},
	}
	got, err := o.config("eth0")
	if err != nil {
		t.Fatal(err)
	}
	want := spreader.Config{
		Device: "eth0", Port: 51820, Lanes: 4, Gather: spreader.GatherXDP,
		Ports: spread.Ports{First: 61000, Last: 61015}, PeerPorts: spread.Ports{First: 62000, Last: 62015},
	}
	for _, p := range []string{"192.0.2.7:0", "192.0.2.8:9", "[2001:db8::1]:0", "[2001:db8::2]:0", "[2001:db8::3]:7"} {
		want.Peers = append(want.Peers, netip.MustParseAddrPort(p))
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	o.gather = "" // the device keeps its setting, as with the gap
	if got, err = o.config("eth0"); err != nil || got.Gather != "" || got.Gap != 0 {
		t.Errorf("got %+v, error %v, want no error", got, err)
	}
	o.ports = "61003, 61001,61017"
	if got, err = o.config("eth0"); err != nil || fmt.Sprint(got.PortPlan) != "[61003 61001 61017]" || got.Ports != (spread.Ports{}) {
		t.Errorf("got %+v, error %v, want no error", got, err)
	}
}

func TestSpreadRejectsInvalidFlags(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"attach", "missing argument: DEVICE"},
		{"attach lo --port x", `--port: want 0-65535, got "x"`},
		{"attach lo", "name it with --port"},
		{"attach lo --port 1 --peer here", `--peer: "here": want an IP address`},
		{"attach lo --port 1 --peer 192.0.2.1:0", "want an IP address"},
		{"attach lo --port 1 --ports 2-1", `--ports "2-1": range 2-1 ends before it begins`},
		{"attach lo --port 1 --ports 1,x", `--ports "1,x": want FIRST-LAST or PORT,PORT`},
		{"attach lo --port 1 --ports 80-99", "privileged ports, below 1024"},
		{"attach lo --port 1 --ports 80,81", "include privileged ones"},
		{"attach lo --port 1 --peer-ports 7", `--peer-ports "7": want two ports`},
		{"attach lo --port 1 --lanes 65", "65 lanes: want 1 to 64"},
		{"attach lo --port 1 --gather some", "want auto, tc or xdp"},
		{"attach lo --port 1 --gap 2h", "want 1ms to 1m"},
		{"attach lo --port 1 --gap 0", "want 1ms to 1m"},
		{"attach lo --port 1 --peer 255.255.255.255", "is not a valid peer address"},
		{"detach eth0", "--port names one tunnel"},
		{"status a b", "unexpected argument \"b\""},
		{"pause --peer here", `--peer "here": not an IP address`},
		{"resume --peer here", `--peer "here": not an IP address`},
	} {
		_, _, err := runSpread(strings.Fields(tt.args)...)
		if err == nil || !strings.Contains(err.Error(), tt.want) || exitCode(err) != exitUsage {
			t.Errorf("%s: got %v, want %q", tt.args, err, tt.want)
		}
	}
	_, _, err := runSpread("attach", "lo", "--port", "1")
	if err == nil || exitCode(err) != exitError || !strings.Contains(err.Error(), "loopback") {
		t.Errorf("got error %v, want an error", err)
	}
}

func TestSpreadStatusIsRendered(t *testing.T) {
	st := spreader.DeviceStatus{
		Device: "eth0",
		Spread: spreader.HookStatus{
			State: "attached", Kind: "tcx", Program: 17, Name: "spread", Reason: "so it is",
			Before: []string{"program 3 (other, tcx)"}, After: []string{"filter cil_to_netdev-eth0 (priority 1)"},
		},
		Gather: spreader.HookStatus{State: "detached", Kind: "none", Reason: "asked for"},
		Tunnels: []spreader.TunnelStatus{{Name: "wg0", Port: 51820, Ports: "61000-61002", Peers: []spreader.PeerStatus{
			{Endpoint: netip.MustParseAddrPort("192.0.2.7:51820"), Gather: "61000-61999", ProbeAnswered: true, Ready: true, Lanes: []spreader.LaneStatus{
				{Port: 61000, Share: 0.5}, {Port: 61001, Share: 0.25}, {Port: 61002, Share: 0.25},
			}},
			{Endpoint: netip.MustParseAddrPort("[2001:db8::7]:51820"), Gather: "61000-61999", Paused: true, Lanes: []spreader.LaneStatus{{Port: 61000}}},
			{
				Endpoint: netip.MustParseAddrPort("192.0.2.8:51820"), Gather: "61000-61999", ProbeAnswered: true, Ready: true, Blocked: []uint16{61001},
				Lanes: []spreader.LaneStatus{{Port: 61000, Share: 1}, {Port: 61001}},
			},
		}, Interface: &spreader.InterfaceCounters{RxPackets: 5, RxErrors: 1234, RxFrameErrors: 1230, RxLengthErrors: 4, RxDropped: 2}}},
		Counters: []spreader.Counter{{Name: "spread", Count: 1234567, Help: "data messages"}, {Name: "error", Help: "never shown"}},
		Queues:   []uint64{10, 0, 30},
		Filter:   spreader.FilterStatus{Devices: []string{"lxc1", "lxc2", "lxc3", "lxc4", "lxc5", "wg0"}, Dropped: 1000},
		Problems: []string{"the link is gone: attach again"},
		Paused:   true,
	}
	got := renderSpread([]spreader.DeviceStatus{st}, "", term.Style{})
	want := strings.TrimPrefix(`
eth0
  spread  attached by tcx, program 17 (spread)
          so it is
          runs after program 3 (other, tcx)
          runs before filter cil_to_netdev-eth0 (priority 1)
  gather  none
          asked for
  paused  messages keep the listen port until `+"`ropewalk spread resume`"+`
  ✗ the link is gone: attach again

  wg0  UDP port 51820, source ports in 61000-61002
    its WireGuard: 1,234 rx_errors (1,230 frame, 4 length), 2 rx_dropped
    peer 192.0.2.7:51820, gathered from 61000-61999, spread to
      61000 ████████████████████████████████████████  50.0%
      61001 ████████████████████                      25.0%
      61002 ████████████████████                      25.0%
    peer [2001:db8::7]:51820, gathered from 61000-61999, paused
      no recent traffic on its 1 source port
    peer 192.0.2.8:51820, gathered from 61000-61999, 1 of 2 source ports blocked on the path
      61000 ████████████████████████████████████████ 100.0%
      61001                                            0.0%

  received datagrams by queue
      0 █████████████                                       10  25.0%
      1                                                      0   0.0%
      2 ████████████████████████████████████████            30  75.0%

       1,234,567  data messages

filter
  forged ICMP errors are dropped on lxc1, lxc2, lxc3, lxc4 and 2 more, 1,000 so far
`, "\n")
	if got != want {
		t.Error(cmp.Diff(want, got))
	}
	if got := renderLeftovers([]string{"/sys/fs/bpf/x"}, term.Style{}); got != "✗ pins of a network namespace that probably no longer exists; "+
		"if so: rm -r /sys/fs/bpf/x\n" {
		t.Errorf("got %q, want %q", got, "✗ pins of a network namespace that probably no longer exists; "+
			"if so: rm -r /sys/fs/bpf/x\n")
	}
	if got := renderSpread(nil, "on eth0", term.Style{}); got != "no spreading on eth0\n" {
		t.Errorf("got %q, want %q", got, "no spreading on eth0\n")
	}
}

// enterSpreadLab moves the test into new network and mount namespaces, with a veth device and a BPF file system at its usual
// path. The thread ends with the test's goroutine.
func enterSpreadLab(t *testing.T) {
	t.Helper()
	namespace.EnterWithMounts(t)
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("bpf", "/sys/fs/bpf", "bpf", 0, ""); err != nil {
		t.Skipf("needs a kernel with a BPF file system: %v", err)
	}
	err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "near"}, PeerName: "far"})
	if err != nil {
		t.Skipf("needs veth links: %v", err)
	}
}

const noSpread = "{\n  \"apiVersion\": \"ropewalk/v1\",\n  \"kind\": \"SpreadStatus\",\n  \"devices\": []\n}\n"

func TestSpreadCommandsFromAttachToDetach(t *testing.T) {
	enterSpreadLab(t)
	c, err := net.ListenUDP("udp4", &net.UDPAddr{Port: 51820}) // a userspace WireGuard
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	attach := []string{"attach", "near", "--port", "51820", "--any-socket", "--peer", "192.0.2.7", "--lanes", "3"}
	for range 2 {
		out, errs, err := runSpread(attach...)
		if err != nil {
			if os.IsPermission(err) {
				t.Skip(err)
			}
			t.Fatal(err)
		}
		if !strings.HasPrefix(out, "near: ? (UDP port 51820) spreads over 3 ports to 1 peer; spread by ") || errs != "" {
			t.Errorf("got %q, %q, want prefix %q, %q", out, errs, "near: ? (UDP port 51820) spreads over 3 ports to 1 peer; spread by ", "")
		}
	}
	out, _, err := runSpread("status", "near", "--json")
	var st struct {
		APIVersion string
		Devices    []map[string]any
	}
	if err != nil || json.Unmarshal([]byte(out), &st) != nil || st.APIVersion != "ropewalk/v1" || len(st.Devices) != 1 {
		t.Fatalf("%v: got %s", err, out)
	}
	for _, key := range []string{"device", "spread", "gather", "tunnels", "counters", "queues", "problems"} {
		if _, ok := st.Devices[0][key]; !ok {
			t.Errorf("the status has no %s: %s", key, out)
		}
	}
	if out, _, err = runSpread("status"); err != nil || !strings.Contains(out, "peer 192.0.2.7:51820, gathered from 61000-61999") {
		t.Errorf("%v: got %s, want %q in it", err, out, "peer 192.0.2.7:51820, gathered from 61000-61999")
	}
	if strings.Contains(out, "✗") {
		t.Errorf("a problem: got %s, want no %q in it", out, "✗")
	}
	for _, command := range []string{"pause", "resume"} {
		if out, _, err := runSpread(command); err != nil || out != "" {
			t.Errorf("%s: got %q, error %v, want %q, no error", command, out, err, "")
		}
		if out, _, err := runSpread("status"); err != nil || strings.Contains(out, "messages keep the listen port") != (command == "pause") {
			t.Errorf("after %s: got status %s, error %v", command, out, err)
		}
	}
	for _, args := range [][]string{{"--port", "51821"}, {}, {}} {
		if out, _, err := runSpread(append([]string{"detach"}, args...)...); err != nil || out != "" {
			t.Errorf("detach %q: got %q, error %v, want %q, no error", args, out, err, "")
		}
	}
	if out, _, err = runSpread("status", "--json"); err != nil || out != noSpread {
		t.Errorf("%v: got %q, want %q", err, out, noSpread)
	}
}

func TestSpreadNeedsATunnel(t *testing.T) {
	enterSpreadLab(t)
	_, _, err := runSpread("attach", "near", "--port", "51820")
	if err == nil || !strings.Contains(err.Error(), "no tunnel listens on UDP port 51820") || exitCode(err) != exitError {
		t.Errorf("got error %v, want an error", err)
	}
}

func TestControlCharactersInNamesAreEscaped(t *testing.T) {
	const hostile = "v\x1b[31m"
	st := spreader.DeviceStatus{
		Device: hostile, Spread: spreader.HookStatus{State: spreader.UnknownState, Kind: "none"},
		Gather:  spreader.HookStatus{State: "attached", Kind: "tcx", Name: hostile},
		Tunnels: []spreader.TunnelStatus{{Name: hostile}}, Filter: spreader.FilterStatus{Devices: []string{hostile}}, Problems: []string{"bad: " + hostile + "\x9b"},
	}
	var report bytes.Buffer
	(&spreadPrinter{out: &report, errs: &report}).print(spreader.Report{
		Device: hostile, Tunnel: hostile, Warnings: []string{hostile}, Skipped: []spreader.SkippedPeer{{Reason: hostile}},
	})
	_, _, err := runSpread("attach", hostile, "--port", "1", "--peer", hostile)
	for _, got := range []string{
		renderSpread([]spreader.DeviceStatus{st}, "", term.Style{}), renderSpread(nil, "on "+hostile, term.Style{}), report.String(), err.Error(),
	} {
		if strings.ContainsAny(got, "\x1b") || !strings.Contains(got, `v\x1b[31m`) {
			t.Errorf("got %q, want %q in it", got, `v\x1b[31m`)
		}
	}
	if got := renderSpread([]spreader.DeviceStatus{st}, "", term.Style{}); !strings.Contains(got, "  spread  unknown\n") {
		t.Errorf("got %s, want %q in it", got, "  spread  unknown\n")
	}
	if got := printable("as it is: \"x\", é\n✗ so"); got != "as it is: \"x\", é\n✗ so" {
		t.Errorf("got %q, want %q", got, "as it is: \"x\", é\n✗ so")
	}
	if exitCode(err) != exitUsage {
		t.Errorf("got error %v", err)
	}
}
