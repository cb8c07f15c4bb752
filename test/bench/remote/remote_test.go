// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/lab/testbed"
	"github.com/ropewalk/ropewalk/pkg/lab/traffic"
	"github.com/ropewalk/ropewalk/test/bench/sshlab"
	"github.com/ropewalk/ropewalk/test/expect"
	"github.com/ropewalk/ropewalk/test/program"
)

var (
	ropewalk = program.Ropewalk()
	agentExe = &program.Program{Env: "ROPEWALK_BENCH_BIN", Package: "github.com/ropewalk/ropewalk/test/bench"}
)

func TestMain(m *testing.M) { os.Exit(program.Main(m, ropewalk, agentExe)) }

// pair is a lab, and directories for the files of both hosts.
type pair struct {
	testing.TB
	*sshlab.Lab
	dirs map[string]string
}

func newPair(t testing.TB) *pair {
	t.Helper()
	return newPairIn(t, map[string]string{"a": t.TempDir(), "b": t.TempDir()})
}

// newPairIn makes a pair whose hosts have the mounts in their directories: they see none that is made later.
func newPairIn(t testing.TB, dirs map[string]string) *pair {
	t.Helper()
	return &pair{TB: t, Lab: sshlab.New(t), dirs: dirs}
}

func (p *pair) dial(name string, lost context.CancelCauseFunc) (*Client, error) {
	return Dial(p.Context(), Config{
		Name: name, Destination: name, SSH: p.SSH, TempDir: p.dirs[name], Arch: Uname(runtime.GOARCH),
		Programs: map[string]string{Agent: agentExe.Need(p), "ropewalk": ropewalk.Need(p)},
	}, lost)
}

// clean fails unless a host is as it was before: no files, and no namespaces of agents beside those that others have.
func (p *pair) clean(name string, before []string) {
	p.Helper()
	expect.Eventually(p, "no files of the agent of "+name, func() bool {
		files, _ := filepath.Glob(filepath.Join(p.dirs[name], "*"))
		return len(files) == 0
	})
	expect.Eventually(p, "no devices of the agent of "+name, func() bool { return slices.Equal(p.devices(p.host(name)), before) })
}

func (p *pair) host(name string) *netlab.Host {
	if name == "a" {
		return p.A
	}
	return p.B
}

func (p *pair) devices(h *netlab.Host) (names []string) {
	p.Helper()
	out, err := h.Command(p.Context(), "cat", "/proc/net/dev").Output()
	expect.NoError(p, err)
	for line := range strings.Lines(string(out)) {
		if name, _, ok := strings.Cut(line, ":"); ok {
			names = append(names, strings.TrimSpace(name))
		}
	}
	slices.Sort(names)
	return names
}

// keepSecond is a sysctl that each namespace has.
const keepSecond = "net.ipv4.tcp_keepalive_time"

func (p *pair) sysctl(h *netlab.Host) string {
	p.Helper()
	out, err := h.Command(p.Context(), "cat", Sysctl(keepSecond, "").Path).Output()
	expect.NoError(p, err)
	return strings.TrimSpace(string(out))
}

// open starts a tunnel of ropewalk between both hosts.
func (p *pair) open(a, b *Client) *Tunnel {
	p.Helper()
	tunnel, err := Open(p.Context(), TunnelConfig{
		A: a, B: b, Addrs: p.Addrs, UDP: 51833, MTU: 1400, OnCPUs: "0",
		Daemon: func(c *Client) []string { return []string{c.Path("ropewalk"), "run", "--log-level", "error"} },
	})
	expect.NoError(p, err)
	return tunnel
}

func TestTunnelOverSSHCarriesTrafficBothWaysAndLeavesNothing(t *testing.T) {
	p := newPair(t)
	before := map[string][]string{"a": p.devices(p.A), "b": p.devices(p.B)}
	old := p.sysctl(p.A)
	lost := func(err error) { t.Error(err) }
	a, err := p.dial("a", lost)
	expect.NoError(t, err)
	b, err := p.dial("b", lost)
	expect.NoError(t, err)
	expect.NoError(t, a.Call(t.Context(), "Set", []Setting{Sysctl(keepSecond, "1234")}, nil))
	if got := p.sysctl(p.A); got != "1234" {
		t.Errorf("%s is %s during the run, want 1234", keepSecond, got)
	}
	var f Facts
	args := FactsArgs{Own: p.Addrs[0], Far: p.Addrs[1], Port: 51833, TrafficPort: Port}
	expect.NoError(t, a.Call(t.Context(), "Facts", args, &f))
	if problems := f.Problems(); len(problems) > 0 || f.Device != "cable0" || f.Driver != "veth" || f.Queues != 2 || f.Version == "" || f.Kernel == "" {
		t.Errorf("problems %v of %+v", problems, f)
	}
	expect.NoError(t, Reach(t.Context(), a, b, p.Addrs, 51833))
	tunnel := p.open(a, b)
	for _, reverse := range []bool{false, true} {
		s, err := tunnel.Send(t.Context(), testbed.Flow{Config: traffic.Config{Kind: traffic.TCP, Streams: 2, Duration: 200 * time.Millisecond}, Reverse: reverse})
		if err != nil || s.Bytes == 0 {
			t.Fatalf("%+v, %v", s, err)
		}
	}
	if s, err := testbed.IdleRTT(t.Context(), tunnel, 100*time.Millisecond); err != nil || s.Value <= 0 {
		t.Errorf("%+v, %v", s, err)
	}
	expect.NoError(t, tunnel.Close())
	expect.NoError(t, a.Close())
	expect.NoError(t, b.Close())
	for name, devices := range before {
		p.clean(name, devices)
	}
	if got := p.sysctl(p.A); got != old {
		t.Errorf("%s is %s after the run, want %s", keepSecond, got, old)
	}
}

func TestOtherHostIsRestoredWhenOneDies(t *testing.T) {
	p := newPair(t)
	before, old := p.devices(p.A), p.sysctl(p.A)
	ctx, cancel := context.WithCancelCause(t.Context())
	a, err := p.dial("a", cancel)
	expect.NoError(t, err)
	b, err := p.dial("b", cancel)
	expect.NoError(t, err)
	expect.NoError(t, a.Call(ctx, "Set", []Setting{Sysctl(keepSecond, "1234")}, nil))
	tunnel := p.open(a, b)
	sent := make(chan error, 1)
	go func() {
		_, err := tunnel.Send(ctx, testbed.Flow{Config: traffic.Config{Kind: traffic.TCP, Duration: time.Minute}})
		sent <- err
	}()
	expect.Eventually(t, "traffic", func() bool {
		return slices.ContainsFunc(p.commands(), func(c string) bool { return strings.Contains(c, "traffic\x00client") })
	})
	p.Kill(t, p.B, "ssh")
	p.Kill(t, p.B, Agent+"\x00host")
	<-ctx.Done()
	if err := context.Cause(ctx); !strings.Contains(err.Error(), "lost the connection to host b") {
		t.Errorf("got %v", err)
	}
	if err := <-sent; err == nil {
		t.Error("traffic to a host that died is no error")
	}
	_ = tunnel.Close()
	expect.NoError(t, a.Close())
	_ = b.Close()
	p.clean("a", before)
	if got := p.sysctl(p.A); got != old {
		t.Errorf("%s is %s, want %s", keepSecond, got, old)
	}
}

// commands are the command lines of all processes of this machine.
func (p *pair) commands() (lines []string) {
	paths, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range paths {
		text, _ := os.ReadFile(path)
		lines = append(lines, string(text))
	}
	return lines
}

func TestKilledSSHRestoresHost(t *testing.T) {
	p := newPair(t)
	before, old := p.devices(p.A), p.sysctl(p.A)
	ctx, cancel := context.WithCancelCause(t.Context())
	a, err := p.dial("a", cancel)
	expect.NoError(t, err)
	expect.NoError(t, a.Call(ctx, "Set", []Setting{Sysctl(keepSecond, "1234")}, nil))
	p.Kill(t, p.A, "sshd: ")
	<-ctx.Done()
	p.clean("a", before)
	expect.Eventually(t, "the old value of "+keepSecond, func() bool { return p.sysctl(p.A) == old })
}

func TestDirectoryWithoutProgramsIsAClearError(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOEXEC, ""); err != nil {
		t.Skipf("needs a tmpfs: %v", err)
	}
	t.Cleanup(func() { expect.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	p := newPairIn(t, map[string]string{"a": dir})
	_, err := p.dial("a", func(error) {})
	files, _ := filepath.Glob(filepath.Join(dir, "*"))
	if err == nil || !strings.Contains(err.Error(), "noexec") || len(files) > 0 {
		t.Errorf("got %v, and %v is left", err, files)
	}
}

func TestShellThatPrintsIsIgnored(t *testing.T) {
	p := newPair(t)
	p.SSH = append([]string{"sh", "-c", `printf 'Welcome\nto {"x"'; exec "$@"`, "sh"}, p.SSH...)
	before := p.devices(p.A)
	a, err := p.dial("a", func(err error) { t.Error(err) })
	expect.NoError(t, err)
	expect.NoError(t, a.Call(t.Context(), "Alive", None{}, nil))
	expect.NoError(t, a.Close())
	p.clean("a", before)
}

func TestAgentRemovesOnlyItsOwnDirectory(t *testing.T) {
	all := t.TempDir()
	own, other := filepath.Join(all, "ropewalk-bench.x"), filepath.Join(all, "other")
	program, err := os.ReadFile(agentExe.Need(t))
	expect.NoError(t, err)
	for _, dir := range []string{own, other} {
		expect.NoError(t, os.Mkdir(dir, 0o700))
		expect.NoError(t, os.WriteFile(filepath.Join(dir, Agent), program, 0o700))
	}
	for _, args := range [][]string{{"host"}, {"host", own}, {"host", other}, {"host", all}} {
		if out, err := exec.Command(filepath.Join(other, Agent), args...).CombinedOutput(); err == nil {
			t.Errorf("%v: no error: %s", args, out)
		}
		for _, dir := range []string{own, other} {
			if _, err := os.Stat(filepath.Join(dir, Agent)); err != nil {
				t.Fatalf("%v: %v", args, err)
			}
		}
	}
	if out, err := exec.Command(filepath.Join(own, Agent), "host").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if left, _ := filepath.Glob(filepath.Join(all, "*")); !slices.Equal(left, []string{other}) {
		t.Errorf("%v is left", left)
	}
}

func TestWrongKeyIsAClearError(t *testing.T) {
	p := newPair(t)
	p.ReplaceKey(t)
	_, err := p.dial("a", func(error) {})
	if err == nil || !strings.Contains(err.Error(), "host a (a)") || !strings.Contains(err.Error(), "Permission denied") {
		t.Errorf("got %v", err)
	}
}

func TestFullDiskIsAClearError(t *testing.T) {
	st, err := os.Stat(agentExe.Need(t))
	expect.NoError(t, err)
	for name, size := range map[string]int64{"agent": 1 << 20, "programs": st.Size() + 1<<20} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+strconv.FormatInt(size, 10)); err != nil {
				t.Skipf("needs a tmpfs: %v", err)
			}
			t.Cleanup(func() { expect.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
			p := newPairIn(t, map[string]string{"a": dir, "b": t.TempDir()})
			_, err := p.dial("a", func(error) {})
			files, _ := filepath.Glob(filepath.Join(dir, "*"))
			if err == nil || !strings.Contains(strings.ToLower(err.Error()), "no space left") || len(files) > 0 {
				t.Errorf("got %v, and %v is left", err, files)
			}
		})
	}
}
