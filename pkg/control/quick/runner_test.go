// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/test/expect"
)

func defaultNet() *net.IPNet { return &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)} }

// everything is a file that needs every kind of step.
const everything = `[Interface]
PrivateKey = $KEY
Address = 10.9.0.1/24, fd09::1/64
DNS = 10.9.0.53, corp.example
PreUp = echo PreUp %i >> $DIR/hooks
PostUp = echo PostUp %i >> $DIR/hooks
PreDown = echo PreDown %i >> $DIR/hooks
PostDown = echo PostDown %i >> $DIR/hooks
[Peer]
PublicKey = $A
Endpoint = 198.51.100.1:51820
AllowedIPs = 0.0.0.0/0, ::/0, 10.7.0.0/16
`

// added returns the lines that are in after and not in before.
func added(before, after []string) []string {
	return slices.DeleteFunc(slices.Clone(after), func(line string) bool { return slices.Contains(before, line) })
}

func TestUpConfiguresHostAndDownRevertsIt(t *testing.T) {
	h := newHost(t)
	before := h.snapshot()
	i := h.open("wg0", everything)
	h.up(i)
	want := []string{
		"address 10.9.0.1/24 dev wg0 scope 0",
		"address fd09::1/64 dev wg0 scope 0",
		"link wg0 mtu 1320 up true",
		"route 0.0.0.0/0 dev wg0 table 51820 scope 253 proto 3 metric 0 type 1",
		"route 10.7.0.0/16 dev wg0 table 254 scope 253 proto 3 metric 0 type 1",
		"route 10.9.0.0/24 dev wg0 table 254 scope 253 proto 2 metric 0 type 1",
		"route ::/0 dev wg0 table 51820 scope 0 proto 3 metric 1024 type 1",
		"route fd09::/64 dev wg0 table 254 scope 0 proto 2 metric 256 type 1",
		"rule {Family:IPv4 Table:254 NotMark:0 SuppressDefault:true Priority:32764}",
		"rule {Family:IPv4 Table:51820 NotMark:51820 SuppressDefault:false Priority:32765}",
		"rule {Family:IPv6 Table:254 NotMark:0 SuppressDefault:true Priority:32764}",
		"rule {Family:IPv6 Table:51820 NotMark:51820 SuppressDefault:false Priority:32765}",
		"file wg0.json",
		"file wg0",
		"file wg0.sock",
		"src_valid_mark true",
	}
	got := slices.DeleteFunc(added(before, h.snapshot()), func(line string) bool { return strings.HasPrefix(line, "nft ") })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if h.Tools.Nft != "" {
		h.wantFirewall()
	}
	expect.NoError(t, h.Down(t.Context(), i))
	expect.NoError(t, hostnet.SetSrcValidMark(false)) // Down keeps it set, as wg-quick does
	if diff := cmp.Diff(before, h.snapshot()); diff != "" {
		t.Error(diff)
	}
	h.wantHooks("PreUp", "PostUp", "PreDown", "PostDown")
}

func (h *testHost) wantFirewall() {
	h.t.Helper()
	got := strings.Join(h.firewall(), "\n")
	for _, want := range []string{
		"nft table ip wg-quick-wg0 {", "nft table ip6 wg-quick-wg0 {",
		`nft iifname != "wg0" ip daddr 10.9.0.1 fib saddr type != local drop`,
		`nft iifname != "wg0" ip6 daddr fd09::1 fib saddr type != local drop`,
		"nft meta l4proto udp meta mark 0x0000ca6c ct mark set",
		"nft meta l4proto udp meta mark set ct mark",
	} {
		if !strings.Contains(got, want) {
			h.t.Errorf("%q is not in\n%s", want, got)
		}
	}
}

// wantHooks checks which hooks of everything ran, and in which order.
func (h *testHost) wantHooks(names ...string) {
	h.t.Helper()
	b, err := os.ReadFile(filepath.Join(h.dir, "hooks"))
	expect.NoError(h.t, err)
	want := strings.Join(names, " wg0\n") + " wg0\n"
	if diff := cmp.Diff(want, string(b)); diff != "" {
		h.t.Error(diff)
	}
}

func TestUpEchoesThePlan(t *testing.T) {
	h := newHost(t)
	i := h.open("wg0", everything)
	h.up(i)
	var want strings.Builder
	dev, err := i.File.Device(t.Context(), h.Resolve)
	expect.NoError(t, err)
	facts := Facts{EndpointMTUs: []int{1400}, FreeTable: 51820, Firewalls: h.Tools.firewalls()}
	steps := slices.Concat(hooks("wg0", i.File.Interface.PreUp), Plan(i, dev, facts))
	for _, line := range shown(steps) {
		want.WriteString("[#] " + line + "\n")
	}
	if diff := cmp.Diff(want.String(), h.stderr.String()); diff != "" {
		t.Error(diff)
	}
	if strings.Contains(h.stderr.String(), testPrivateKey) {
		t.Error("the private key was echoed")
	}
}

func TestSecondUpAndSecondDownAreRefused(t *testing.T) {
	h := newHost(t)
	i := h.open("wg0", everything)
	h.up(i)
	up := h.snapshot()
	err := h.Up(t.Context(), i)
	if !errors.Is(err, ErrExists) || err.Error() != "`wg0' already exists" {
		t.Errorf("up twice: got %v", err)
	}
	if diff := cmp.Diff(up, h.snapshot()); diff != "" {
		t.Error(diff)
	}
	expect.NoError(t, h.Down(t.Context(), i))
	err = h.Down(t.Context(), i)
	if !errors.Is(err, ErrNotWireGuard) || err.Error() != "`wg0' is not a WireGuard interface" {
		t.Errorf("down twice: got %v", err)
	}
	h.wantHooks("PreUp", "PostUp", "PreDown", "PostDown")
}

// failing is a step that always fails.
type failing struct{}

var errInjected = errors.New("injected")

func (failing) String() string                  { return "false" }
func (failing) run(context.Context, *job) error { return errInjected }
func (failing) undo() Step                      { return nil }

func TestFailureAfterAnyStepUndoesAllSteps(t *testing.T) {
	h := newHost(t)
	i := h.open("wg0", everything)
	dev, err := i.File.Device(t.Context(), h.Resolve)
	expect.NoError(t, err)
	unlock, err := h.lock("wg0") // also makes RunDir
	expect.NoError(t, err)
	defer unlock()
	j := &job{Runner: h.Runner, Interface: i}
	before := h.snapshot()
	facts, err := j.facts(dev)
	expect.NoError(t, err)
	plan := Plan(i, dev, facts)
	for n := range len(plan) + 1 {
		var done progress
		err := done.execute(t.Context(), j, append(slices.Clone(plan[:n]), failing{}))
		if !errors.Is(err, errInjected) {
			t.Fatalf("after %d steps: got error %v, want %v", n, err, errInjected)
		}
		expect.NoError(t, done.undo(t.Context(), j))
		if diff := cmp.Diff(before, h.snapshot()); diff != "" {
			t.Errorf("after %d steps, the last %v: %s", n, plan[:n][max(n-1, 0):], diff)
		}
	}
}

// failures are setups that make one step of Up fail. Each returns the file to use.
func failures() map[string]func(*testHost) string {
	edit := func(old, new string) func(*testHost) string {
		return func(*testHost) string { return strings.Replace(everything, old, new, 1) }
	}
	daemon := func(mode string) func(*testHost) string {
		return func(h *testHost) string {
			h.Daemon, h.Timeout = fakeCommand(mode, h.Sockets), 200*time.Millisecond
			return everything
		}
	}
	return map[string]func(*testHost) string{
		"PreUp":         edit("echo PreUp", "false; echo"),
		"PostUp":        edit("echo PostUp", "false; echo"),
		"endpoint":      edit("198.51.100.1:", "[fe80::1%absent0]:"),
		"table":         edit("DNS", "Table = nosuch\nDNS"),
		"address":       edit("10.9.0.1/24,", "10.9.0.1/24, 10.9.0.1/24,"),
		"dead daemon":   daemon(fakeDies),
		"silent daemon": daemon(fakeSilent),
		"no port":       daemon(fakeNoPort),
		"port in use": func(h *testHost) string {
			h.Daemon = fakeCommand(fakeTaken, h.Sockets)
			return everything
		},
		"resolvconf": func(h *testHost) string {
			expect.NoError(h.t, os.WriteFile(h.Tools.Resolvconf, []byte("#!/bin/sh\n[ $1 = -d ]\n"), 0o755))
			return everything
		},
		"no resolvconf": func(h *testHost) string { h.Tools.Resolvconf = ""; return everything },
		"nft":           func(h *testHost) string { h.Tools.Nft = "/bin/false"; return everything },
		"no daemon": func(h *testHost) string {
			h.Daemon = func(string, []string) *exec.Cmd { return exec.Command(filepath.Join(h.dir, "absent")) }
			return everything
		},
	}
}

// TestFailingStepLeavesNothingBehind makes the steps themselves fail, unlike the test above.
func TestFailingStepLeavesNothingBehind(t *testing.T) {
	for name, setUp := range failures() {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			nft := h.Tools.Nft
			before := h.snapshot()
			i := h.open("wg0", setUp(h))
			if err := h.Up(t.Context(), i); err == nil {
				t.Fatal("Up succeeded")
			}
			h.Tools.Nft = nft
			if diff := cmp.Diff(before, h.snapshot()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestErrorOfDeadDaemonHasEndOfItsLog(t *testing.T) {
	h := newHost(t)
	h.Daemon = fakeCommand(fakeDies, h.Sockets)
	err := h.Up(t.Context(), h.open("wg0", everything))
	want := "starting the daemon of wg0: it exited: exit status 1\nfake daemon of wg0: no luck"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	info, err := os.Stat(filepath.Join(h.RunDir, "wg0.log"))
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("log: got %v, error %v, want no error", info, err)
	}
}

func TestUpReportsPortInUse(t *testing.T) {
	for text, port := range map[string]string{everything: "0", strings.Replace(everything, "DNS", "ListenPort = 51820\nDNS", 1): "51820"} {
		h := newHost(t)
		h.Daemon = fakeCommand(fakeTaken, h.Sockets)
		before := h.snapshot()
		err := h.Up(t.Context(), h.open("wg0", text))
		want := "opening listen port " + port + ": configuring interface wg0: address already in use; free this port, or set another ListenPort"
		if !errors.Is(err, syscall.EADDRINUSE) || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
		if strings.Contains(h.stderr.String(), "route add") {
			t.Errorf("routes were added:\n%s", h.stderr.String())
		}
		if diff := cmp.Diff(before, h.snapshot()); diff != "" {
			t.Error(diff)
		}
	}
}

func TestUpRetriesOpeningThePort(t *testing.T) {
	h := newHost(t)
	h.Daemon = fakeCommand(fakeFreed, h.Sockets)
	h.up(h.open("wg0", strings.Replace(everything, "DNS", "ListenPort = 51820\nDNS", 1)))
	c, err := h.Sockets.Dial("wg0")
	expect.NoError(t, err)
	defer c.Close()
	if st, err := c.Status(); err != nil || st.ListenPort != 51820 {
		t.Errorf("got port %d, error %v, want 51820, no error", st.ListenPort, err)
	}
	if up, err := isUp(c); err != nil || !up {
		t.Errorf("got up %v, error %v, want true, no error", up, err)
	}
}

func TestInterruptedUpIsUndone(t *testing.T) {
	h := newHost(t)
	before := h.snapshot()
	ctx, cancel := context.WithCancel(t.Context())
	h.Stdout = writerFunc(func(b []byte) (int, error) { cancel(); return len(b), nil })
	i := h.open("wg0", strings.Replace(everything, "echo PostUp %i >> $DIR/hooks", "echo interrupted", 1))
	err := h.Up(ctx, i)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want %v", err, context.Canceled)
	}
	if diff := cmp.Diff(before, h.snapshot()); diff != "" {
		t.Error(diff)
	}
}

// killDaemon ends the daemon without giving it a chance to clean up, and waits for its interface to go.
func (h *testHost) killDaemon(i Interface) {
	h.t.Helper()
	j := &job{Runner: h.Runner, Interface: i}
	p, err := j.findProcess()
	expect.NoError(h.t, err)
	defer p.close()
	expect.NoError(h.t, syscall.Kill(p.pid, syscall.SIGKILL))
	if ended, err := p.pollExit(time.Minute); !ended || err != nil {
		h.t.Fatalf("got ended %v, error %v, want true, no error", ended, err)
	}
	for _, err := hostnet.FindLink(i.Name); err == nil; _, err = hostnet.FindLink(i.Name) {
		runtime.Gosched()
	}
}

func TestDownRemovesLeftoversOfKilledDaemon(t *testing.T) {
	h := newHost(t)
	before := h.snapshot()
	i := h.open("wg0", strings.Replace(everything, "DNS", "SaveConfig = true\nDNS", 1))
	h.up(i)
	h.killDaemon(i)
	expect.NoError(t, h.Down(t.Context(), i))
	expect.NoError(t, hostnet.SetSrcValidMark(false))
	if diff := cmp.Diff(before, h.snapshot()); diff != "" {
		t.Error(diff)
	}
	h.wantHooks("PreUp", "PostUp", "PreDown", "PostDown")
	if err := h.Down(t.Context(), i); !errors.Is(err, ErrNotWireGuard) {
		t.Errorf("down again: got %v", err)
	}
}

// TestDownKeepsSavedEndpointsOfKilledDaemon: a service manager takes the interface down before it starts the next daemon.
func TestDownKeepsSavedEndpointsOfKilledDaemon(t *testing.T) {
	h := newHost(t)
	i := h.open("wg0", everything)
	h.up(i)
	h.killDaemon(i)
	saved := filepath.Join(h.RunDir, "wg0.endpoints")
	expect.NoError(t, os.WriteFile(saved, []byte("{}"), 0o600))
	expect.NoError(t, h.Down(t.Context(), i))
	if _, err := os.Stat(saved); err != nil {
		t.Errorf("the saved endpoints are gone: %v", err)
	}
}

func TestUpReplacesLeftoversOfKilledDaemon(t *testing.T) {
	h := newHost(t)
	i := h.open("wg0", everything)
	h.up(i)
	want := h.snapshot()
	h.killDaemon(i)
	expect.NoError(t, h.Up(t.Context(), i))
	if diff := cmp.Diff(want, h.snapshot()); diff != "" {
		t.Error(diff)
	}
}

func TestDownKeepsAnotherInterfaceOfThatName(t *testing.T) {
	h := newHost(t)
	i := h.open("wg0", everything)
	h.up(i)
	h.killDaemon(i)
	expect.NoError(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "wg0"}}))
	if err := h.Down(t.Context(), i); !errors.Is(err, ErrNotWireGuard) {
		t.Errorf("got error %v, want %v", err, ErrNotWireGuard)
	}
	expect.NoError(t, hostnet.DeleteLink("wg0"))
}

func TestDaemonThatOutlivesItsInterfaceIsKilled(t *testing.T) {
	h := newHost(t)
	h.Daemon = fakeCommand(fakeStubborn, h.Sockets)
	i := h.open("wg0", everything)
	h.up(i)
	p, err := (&job{Runner: h.Runner, Interface: i}).findProcess()
	expect.NoError(t, err)
	defer p.close()
	h.Timeout = 50 * time.Millisecond
	// The timeout is so short that the last wait may end before the process has exited.
	if err := h.Down(t.Context(), i); err != nil {
		t.Log(err)
	}
	if ended, err := p.pollExit(time.Minute); !ended || err != nil {
		t.Errorf("got ended %v, error %v, want true, no error", ended, err)
	}
}

// suspend stops a process, and waits until its last thread has stopped. Signal delivery is asynchronous.
func (h *testHost) suspend(p process) {
	h.t.Helper()
	expect.NoError(h.t, unix.PidfdSendSignal(p.fd, unix.SIGSTOP, nil, 0))
	expect.Eventually(h.t, fmt.Sprintf("process %d is stopped", p.pid), func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", p.pid))
		expect.NoError(h.t, err)
		running := slices.ContainsFunc(threads, func(path string) bool {
			status, err := os.ReadFile(path)
			return err == nil && !strings.Contains(string(status), "\nState:\tT")
		})
		return len(threads) > 0 && !running
	})
}

// TestDownKillsHangingDaemonAndCleansUp has a daemon that does not answer with its status.
func TestDownKillsHangingDaemonAndCleansUp(t *testing.T) {
	h := newHost(t)
	before := h.snapshot()
	i := h.open("wg0", strings.Replace(everything, "DNS", "SaveConfig = true\nDNS", 1))
	h.up(i)
	p, err := (&job{Runner: h.Runner, Interface: i}).findProcess()
	expect.NoError(t, err)
	defer p.close()
	h.suspend(p)
	h.Timeout = 200 * time.Millisecond
	downErr := h.Down(t.Context(), i)
	if ended, err := p.pollExit(time.Minute); !ended || err != nil {
		t.Errorf("got ended %v, error %v, want true, no error", ended, err)
	}
	if !strings.Contains(h.stderr.String(), "does not answer") {
		t.Error(h.stderr.String())
	}
	if downErr != nil { // the timeout is so short that the last wait may end before the process has exited
		expect.NoError(t, h.Down(t.Context(), i))
	}
	expect.NoError(t, hostnet.SetSrcValidMark(false))
	if diff := cmp.Diff(before, h.snapshot()); diff != "" {
		t.Error(diff)
	}
}

// TestStatusOfMovedInterfaceDoesNotWaitForHangingDaemon removes the interface, which is as good as moving it while its daemon says nothing.
func TestStatusOfMovedInterfaceDoesNotWaitForHangingDaemon(t *testing.T) {
	h := newHost(t)
	i := h.open("wg0", basic)
	h.up(i)
	j := &job{Runner: h.Runner, Interface: i}
	p, err := j.findProcess()
	expect.NoError(t, err)
	defer p.close()
	h.suspend(p)
	expect.NoError(t, hostnet.DeleteLink("wg0"))
	h.Timeout = 50 * time.Millisecond
	if _, err := j.status(); !errors.Is(err, ErrUnresponsive) || !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v, want %v after this package's timeout", err, ErrUnresponsive)
	}
	expect.NoError(t, unix.PidfdSendSignal(p.fd, unix.SIGKILL, nil, 0))
}

// TestDownReportsDaemonWithFullListenQueue has a daemon that cannot be found by its socket.
func TestDownReportsDaemonWithFullListenQueue(t *testing.T) {
	h := newHost(t)
	if err := os.WriteFile("/proc/sys/net/core/somaxconn", []byte("1"), 0o600); err != nil {
		t.Skip("needs /proc/sys/net/core of its namespace: ", err)
	}
	before := h.snapshot()
	i := h.open("wg0", everything)
	h.up(i)
	p, err := (&job{Runner: h.Runner, Interface: i}).findProcess()
	expect.NoError(t, err)
	defer p.close()
	h.suspend(p)
	for err = nil; !uapi.IsUnresponsive(err); {
		var c *uapi.Client
		if c, err = h.Sockets.Dial("wg0"); err == nil {
			defer c.Close()
		} else if !uapi.IsUnresponsive(err) {
			t.Fatal(err)
		}
	}
	h.Timeout = 50 * time.Millisecond
	err = h.Down(t.Context(), i)
	if want := fmt.Sprintf("process %d is still running after its interface was deleted", p.pid); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
	if out := h.stderr.String(); !strings.Contains(out, "does not answer") || strings.Contains(out, "is not running") {
		t.Error(out)
	}
	expect.NoError(t, unix.PidfdSendSignal(p.fd, unix.SIGKILL, nil, 0))
	if ended, err := p.pollExit(time.Minute); !ended || err != nil {
		t.Fatalf("got ended %v, error %v, want true, no error", ended, err)
	}
	expect.NoError(t, h.Down(t.Context(), i))
	expect.NoError(t, hostnet.SetSrcValidMark(false))
	if diff := cmp.Diff(before, h.snapshot()); diff != "" {
		t.Error(diff)
	}
}

func TestDefaultRoutesOfTwoInterfacesAreIndependent(t *testing.T) {
	h := newHost(t)
	first, second := h.open("wg0", everything), h.open("wg1", strings.NewReplacer(".9.", ".8.", "fd09", "fd08", ".7.", ".6.", "DNS", "MTU = 1320\nDNS").Replace(everything))
	h.up(first)
	one := h.rules()
	h.up(second)
	expect.NoError(t, h.Down(t.Context(), second))
	if diff := cmp.Diff(one, h.rules()); diff != "" {
		t.Error(diff)
	}
	h.up(second)
	expect.NoError(t, h.Down(t.Context(), first))
	got := strings.Join(h.rules(), "\n")
	if strings.Contains(got, "Table:51820") || strings.Count(got, "Table:51821") != 2 || strings.Count(got, "SuppressDefault:true") != 2 {
		t.Errorf("got\n%s", got)
	}
}

func TestLockedInterfaceIsRefused(t *testing.T) {
	h := newHost(t)
	i := h.open("wg0", everything)
	unlock, err := h.lock("wg0")
	expect.NoError(t, err)
	if err := h.Up(t.Context(), i); err == nil {
		t.Error("Up succeeded")
	}
	if err := h.Down(t.Context(), i); err == nil || errors.Is(err, ErrNotWireGuard) {
		t.Errorf("down: got %v", err)
	}
	unlock()
	h.up(i)
}

func TestInterfaceServedInAnotherNamespaceIsErrExists(t *testing.T) {
	h := newHost(t)
	l, err := h.Sockets.Listen("wg0")
	expect.NoError(t, err)
	defer l.Close()
	if err := h.Up(t.Context(), h.open("wg0", everything)); !errors.Is(err, ErrExists) {
		t.Errorf("got error %v, want %v", err, ErrExists)
	}
}

func TestUpWarnsWithoutFirewallTools(t *testing.T) {
	h := newHost(t)
	h.Tools = Tools{Bash: h.Tools.Bash, Sh: h.Tools.Sh, Resolvconf: h.Tools.Resolvconf}
	h.up(h.open("wg0", everything))
	if got := strings.Count(h.stderr.String(), "Warning: neither nft nor ip"); got != 2 {
		t.Errorf("%d warnings in\n%s", got, h.stderr.String())
	}
}

// TestEachFamilyHasItsOwnFirewallTool: a host without IPv6 may lack ip6tables.
func TestEachFamilyHasItsOwnFirewallTool(t *testing.T) {
	h := newHost(t)
	tool, rules := filepath.Join(h.dir, "iptables-restore"), filepath.Join(h.dir, "rules")
	expect.NoError(t, os.WriteFile(tool, []byte("#!/bin/sh\ncat >> '"+rules+"'\n"), 0o755))
	h.Tools = Tools{Bash: h.Tools.Bash, Sh: h.Tools.Sh, Resolvconf: h.Tools.Resolvconf, IptablesRestore: tool}
	h.up(h.open("wg0", everything))
	got, err := os.ReadFile(rules)
	if want := "-I PREROUTING ! -i wg0 -d 10.9.0.1 "; err != nil || !strings.Contains(string(got), want) {
		t.Errorf("got rules %q, error %v, want %q in them", got, err, want)
	}
	if out := h.stderr.String(); strings.Contains(out, "nor iptables") || !strings.Contains(out, "Warning: neither nft nor ip6tables is installed: packets to wg0's IPv6 addresses") {
		t.Errorf("got warnings of the wrong family:\n%s", out)
	}
}

func TestInterfaceHasNoLinkLocalAddress(t *testing.T) {
	h := newHost(t)
	h.up(h.open("wg0", everything))
	addrs, err := hostnet.Addresses("wg0")
	expect.NoError(t, err)
	if got, want := texts(addrs), "[10.9.0.1/24 fd09::1/64]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestDownRemovesItsFiles(t *testing.T) {
	h := newHost(t)
	i := h.open("wg0", everything)
	for range 2 {
		h.up(i)
		expect.NoError(t, h.Down(t.Context(), i))
		left, err := os.ReadDir(h.RunDir)
		expect.NoError(t, err)
		for _, f := range left {
			if strings.HasPrefix(f.Name(), "wg0.") {
				t.Errorf("%s is left", f.Name())
			}
		}
	}
}

// TestRemovedLockIsNotHeld has a process that opened the lock before its owner removed it.
func TestRemovedLockIsNotHeld(t *testing.T) {
	path := filepath.Join(t.TempDir(), "wg0.lock")
	first, err := lockFile(path)
	expect.NoError(t, err)
	if _, err := lockFile(path); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("got error %v, want %v", err, unix.EWOULDBLOCK)
	}
	expect.NoError(t, os.Remove(path))
	second, err := lockFile(path)
	expect.NoError(t, err)
	defer func() { expect.NoError(t, second.Close()) }()
	expect.NoError(t, first.Close())
	if _, err := lockFile(path); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("the second lock: got error %v, want %v", err, unix.EWOULDBLOCK)
	}
}

func TestDownRemovesDNSThatTheFileHasLost(t *testing.T) {
	h := newHost(t)
	before := h.snapshot()
	h.up(h.open("wg0", everything))
	expect.NoError(t, h.Down(t.Context(), h.open("wg0", strings.Replace(everything, "DNS = 10.9.0.53, corp.example\n", "", 1))))
	expect.NoError(t, hostnet.SetSrcValidMark(false))
	if diff := cmp.Diff(before, h.snapshot()); diff != "" {
		t.Error(diff)
	}
}

func TestDownReportsFailedSaveAndKeepsInterface(t *testing.T) {
	h := newHost(t)
	h.up(h.open("wg0", everything))
	before := h.snapshot()
	i := h.open("wg0", strings.Replace(everything, "DNS", "SaveConfig = true\nDNS", 1))
	i.Path = filepath.Join(h.dir, "absent", "wg0.conf")
	if err := h.Down(t.Context(), i); err == nil || !strings.Contains(err.Error(), "so wg0 stays up") {
		t.Errorf("got error %v, want one that says that wg0 stays up", err)
	}
	if diff := cmp.Diff(before, h.snapshot()); diff != "" {
		t.Error(diff)
	}
}
