// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ropewalk/ropewalk/test/bench/measure"
	"github.com/ropewalk/ropewalk/test/bench/remote"
	"github.com/ropewalk/ropewalk/test/bench/result"
)

// hostNames are the names of both hosts in messages. A is the host under test.
var hostNames = [2]string{"A", "B"}

// hostsOptions are the command line of `bench hosts`.
type hostsOptions struct {
	destinations                        [2]string
	forward                             netip.Prefix  // behind A; if invalid, nothing is forwarded
	addrs                               [2]netip.Addr // if invalid, the address that ssh has reached
	port                                uint16
	mtus                                []int
	cores                               []string // numbers, or all
	offline, xdp                        bool
	rounds                              int
	stretch                             time.Duration
	tests, setups                       []string
	sysctls                             []remote.Setting
	link                                float64 // Gbit/s, 0 if the NIC tells
	target, by                          string
	ssh                                 []string
	tempDir, programs, out, predictions string
	arch                                string // of the programs
	tailscale                           string // the path of Tailscale's fork, if it is not among them
	measures                            []measure.Measure
	command                             string
}

// copied are the programs that hosts get, by their names there. Programs that do not exist are left out.
func (o *hostsOptions) copied() map[string]string {
	found := map[string]string{}
	for _, name := range []string{remote.Agent, "ropewalk", "wireguard-go", tailscaleName, quicProgram} {
		if path := filepath.Join(o.programs, name); isExecutable(path) {
			found[name] = path
		}
	}
	if o.tailscale != "" {
		found[tailscaleName] = o.tailscale
	}
	return found
}

const tailscaleName = "tailscale"

// installTailscale installs Tailscale's fork as the comparison on this machine does, for hosts of this architecture.
func (o *hostsOptions) installTailscale(ctx context.Context, diag io.Writer) error {
	if o.arch != runtime.GOARCH || len(o.setups) > 0 && !slices.Contains(o.setups, tailscaleName) {
		return nil
	}
	list, _, err := choosePeers(peers(), []string{tailscaleName})
	if err != nil {
		return err
	}
	in, err := newInstaller("build/peers", diag)
	if err != nil {
		return err
	}
	list, err = in.installAll(ctx, list)
	for _, p := range list {
		o.tailscale = p.argv(in.dir)[0]
	}
	return err
}

const quicProgram = "bench-quic"

func parseHostsOptions(args []string, out io.Writer) (o hostsOptions, err error) {
	f := flag.NewFlagSet("bench hosts", flag.ContinueOnError)
	f.SetOutput(out)
	f.Usage = func() {
		fmt.Fprintln(out, "usage: bench hosts [FLAGS] [USER@]HOST-A [USER@]HOST-B\nIt measures tunnels between two hosts, over ssh (docs/bench-hosts.md). HOST-A is the host under test.")
		f.PrintDefaults()
	}
	list := func(to *[]string) func(string) error {
		return func(s string) error { *to = splitNames(s); return nil }
	}
	o.cores, o.mtus = []string{"all"}, []int{1420}
	f.Func("addresses", "addresses of A and B on the network between them, comma-separated (default: those that ssh has reached)", o.parseAddrs)
	f.Func("port", "UDP port of the tunnels at both hosts (default 51822)", func(s string) error {
		n, err := strconv.ParseUint(s, 10, 16)
		o.port = uint16(n)
		return err
	})
	f.Func("forward", "IPv4 network, such as 10.88.0.0/24, that A forwards for: all tunnels carry its traffic in place of A's own", o.parseForward)
	f.Func("mtu", "MTUs of the tunnels, comma-separated (default 1420)", o.parseMTUs)
	f.Func("cores", "numbers of cores of A, comma-separated, such as 1,2,4,all (default all)", list(&o.cores))
	f.BoolVar(&o.offline, "offline-cores", false, "take the other cores of A offline; without it only processes are limited, not the kernel's work")
	f.BoolVar(&o.xdp, "xdp", false, "measure ropewalk's AF_XDP sockets, too: some drivers lose the link for seconds")
	f.IntVar(&o.rounds, "rounds", 3, "how often everything is measured; a result for the project needs 3")
	seconds := f.Float64("seconds", 3, "seconds of traffic in each test")
	f.Func("tests", "tests, comma-separated (default all): "+strings.Join(measureNames(measure.Hosts(quicProgram)), ", "), list(&o.tests))
	f.Func("setups", "setups, comma-separated (default all but ropewalk-xdp and wireguard-go-spread): "+strings.Join(setupNames(), ", "), list(&o.setups))
	f.Func("sysctl", "NAME=VALUE to set on both hosts meanwhile; may be repeated", func(s string) error {
		name, value, ok := strings.Cut(s, "=")
		if !ok {
			return errors.New("want NAME=VALUE")
		}
		o.sysctls = append(o.sysctls, remote.Sysctl(name, value))
		return nil
	})
	f.Float64Var(&o.link, "link", 0, "rate of the network in Gbit/s (default: that of A's device)")
	f.StringVar(&o.target, "target", "", "name of the machines in docs/dev/predictions.md (default: the cloud's name of A)")
	f.StringVar(&o.by, "by", "somebody", "your name, for the result")
	ssh := f.String("ssh", "ssh", "the command, with options")
	f.StringVar(&o.tempDir, "dir", "/tmp", "directory on the hosts in which the programs' directory is made; it must not be mounted noexec")
	f.StringVar(&o.programs, "programs", "bin", "directory of the programs to copy, built for the hosts' architecture")
	f.StringVar(&o.arch, "arch", runtime.GOARCH, "architecture of those programs")
	f.StringVar(&o.out, "out", "", "directory for the report, which must not exist (default build/hosts/TIME)")
	f.StringVar(&o.predictions, "predictions", "docs/results/predictions.json", "file of predictions")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	o.ssh = strings.Fields(*ssh)
	return o, o.complete(f.Args(), *seconds)
}

func (o *hostsOptions) complete(args []string, seconds float64) error {
	if len(args) != 2 {
		return errors.New("want two hosts: make bench-hosts A=root@host1 B=root@host2")
	}
	o.destinations = [2]string(args)
	if o.rounds < 1 || !(seconds > 0 && seconds <= maxSeconds) || len(o.cores) == 0 || len(o.ssh) == 0 {
		return fmt.Errorf("--rounds: want at least 1; --seconds: want up to %d; --cores, --ssh: want something", maxSeconds)
	}
	for _, c := range o.cores {
		if n, err := strconv.Atoi(c); c != "all" && (err != nil || n < 1) {
			return fmt.Errorf("--cores: %q is neither a number nor all", c)
		}
	}
	if o.port == 0 {
		o.port = 51822
	}
	if o.out == "" {
		o.out = filepath.Join("build/hosts", time.Now().Format("2006-01-02T150405"))
	}
	o.stretch = time.Duration(math.Ceil(seconds * float64(time.Second)))
	quic := ""
	if o.copied()[quicProgram] != "" {
		quic = quicProgram
	}
	var err error
	o.measures, err = chooseMeasures(measure.Hosts(quic), nil, o.tests)
	return errors.Join(err, onlyValid("setup", o.setups, setupNames()))
}

func setupNames() (names []string) {
	for _, s := range setups() {
		names = append(names, s.name)
	}
	return names
}

func (o *hostsOptions) parseAddrs(s string) error {
	a, b, _ := strings.Cut(s, ",")
	for i, text := range []string{a, b} {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return err
		}
		o.addrs[i] = addr
	}
	return nil
}

func (o *hostsOptions) parseForward(s string) (err error) {
	o.forward, err = netip.ParsePrefix(s)
	if err == nil && (!o.forward.Addr().Is4() || o.forward.Bits() > 30) {
		err = errors.New("want an IPv4 network with two addresses, such as 10.88.0.0/24")
	}
	return err
}

func (o *hostsOptions) parseMTUs(s string) error {
	o.mtus = nil
	for _, text := range splitNames(s) {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1280 || n > 65535 {
			return fmt.Errorf("%q: want 1280 to 65535 bytes", text)
		}
		o.mtus = append(o.mtus, n)
	}
	return nil
}

// hostsRun is one run of `bench hosts`.
type hostsRun struct {
	hostsOptions
	out, diag io.Writer
	ctx       context.Context
	clients   [2]*remote.Client
	facts     [2]*remote.Facts
	cells     map[string]cell // by their text
	progress  *progress
	report    hostsReport
}

// runHosts measures between two hosts, and leaves them as they were, also when ctx ends it.
func runHosts(ctx context.Context, args []string, out, diag io.Writer) (err error) {
	o, err := parseHostsOptions(args, diag)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := &hostsRun{hostsOptions: o, out: out, diag: diag, ctx: ctx, progress: &progress{out: diag}}
	r.command = hostsCommand(args[:len(args)-2])
	defer func() { err = errors.Join(err, r.disconnect()) }()
	if found := r.copied(); found[remote.Agent] == "" || found["ropewalk"] == "" {
		return fmt.Errorf("%s has no bench or no ropewalk: make bench-hosts builds them", r.programs)
	}
	if err := r.installTailscale(ctx, diag); err != nil {
		return err
	}
	if err := r.connect(cancel); err != nil {
		return err
	}
	if err := r.prepare(); err != nil {
		return err
	}
	err = r.measureAll()
	r.progress.clear()
	return errors.Join(err, r.report.write(o.out, out))
}

// hostsCommand is how to measure the same, without the hosts' names and without flags that concern only this machine.
func hostsCommand(flags []string) string {
	var rest []string
	for i := 0; i < len(flags); i++ {
		name, _, joined := strings.Cut(strings.TrimLeft(flags[i], "-"), "=")
		if !slices.Contains([]string{"ssh", "dir", "programs", "arch", "out", "predictions", "by"}, name) {
			rest = append(rest, flags[i])
		} else if !joined {
			i++ // its value
		}
	}
	if len(rest) == 0 {
		return "make bench-hosts A=HOST-A B=HOST-B"
	}
	return "make bench-hosts A=HOST-A B=HOST-B ARGS='" + strings.Join(rest, " ") + "'"
}

// connect starts both agents.
func (r *hostsRun) connect(lost context.CancelCauseFunc) error {
	programs := r.copied()
	for i, to := range r.destinations {
		fmt.Fprintf(r.diag, "copying the programs to host %s, %s\n", hostNames[i], to)
		c, err := remote.Dial(r.ctx, remote.Config{
			Name: hostNames[i], Destination: to, SSH: r.ssh, TempDir: r.tempDir, Arch: remote.Uname(r.arch), Programs: programs,
		}, lost)
		if err != nil {
			return err
		}
		r.clients[i] = c
	}
	return nil
}

func (r *hostsRun) disconnect() error {
	var errs []error
	for _, c := range r.clients {
		if c != nil {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
}

// prepare checks the hosts, and changes the settings that were asked for.
func (r *hostsRun) prepare() error {
	for i, c := range r.clients {
		if !r.addrs[i].IsValid() {
			if err := c.Call(r.ctx, "Own", remote.None{}, &r.addrs[i]); err != nil {
				return err
			}
		}
		if !r.addrs[i].Unmap().Is4() {
			return fmt.Errorf("host %s: the address is %v, want one of IPv4: --addresses", hostNames[i], r.addrs[i])
		}
		r.addrs[i] = r.addrs[i].Unmap()
	}
	var errs []error
	for i, c := range r.clients {
		errs = append(errs, c.Call(r.ctx, "Set", r.sysctls, nil)) // first: facts have the values that are measured with
		r.facts[i] = new(remote.Facts)
		args := remote.FactsArgs{Own: r.addrs[i], Far: r.addrs[1-i], Port: r.port, TrafficPort: remote.Port}
		if err := c.Call(r.ctx, "Facts", args, r.facts[i]); err != nil {
			errs = append(errs, err)
			continue
		}
		for _, p := range r.facts[i].Problems() {
			errs = append(errs, fmt.Errorf("host %s (%s): %w", hostNames[i], r.destinations[i], p))
		}
		for _, w := range r.facts[i].Doctor {
			fmt.Fprintf(r.diag, "host %s: ropewalk doctor: %s\n", hostNames[i], w)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := remote.Reach(r.ctx, r.clients[0], r.clients[1], r.addrs, r.port); err != nil {
		return err
	}
	return r.plan()
}

// plan chooses what is measured.
func (r *hostsRun) plan() error {
	list, missing, err := chooseSetups(r.setups, r.xdp, r.clients[0], r.clients[1], r.facts)
	if err != nil {
		return err
	}
	for _, m := range missing {
		fmt.Fprintf(r.diag, "not measured: %s\n", m)
	}
	if len(list) == 0 {
		return errors.New("nothing is left to measure")
	}
	all := len(r.facts[0].CPUs)
	var cores []int
	for _, c := range r.cores {
		n := all
		if c != "all" {
			n, _ = strconv.Atoi(c) // checked
		}
		if n > all {
			return fmt.Errorf("--cores: host A has %d, not %d", all, n)
		}
		if !slices.Contains(cores, n) {
			cores = append(cores, n)
		}
	}
	slices.SortFunc(cores, func(a, b int) int { return b - a }) // the most first: they are compared in full
	combinations := cells(list, r.mtus, cores)
	r.cells = map[string]cell{}
	for _, c := range combinations {
		r.cells[c.String()] = c
	}
	sum, err := checksum(r.copied()["ropewalk"])
	if err != nil {
		return err
	}
	r.report = hostsReport{
		cells: combinations, measures: r.measures, missing: missing, offline: r.offline, forwarded: r.forward.IsValid(), names: newHostsNames(r.destinations, r.addrs),
		Result: result.Result{Target: r.target, Day: time.Now().Format(time.DateOnly), By: r.by, Command: r.command},
	}
	for i, f := range r.facts {
		h := f.Host
		h.SHA256 = sum
		if r.link > 0 {
			h.LinkGbps = r.link
		}
		*[]*result.Host{&r.report.Under, &r.report.Other}[i] = h
	}
	r.report.name()
	return r.report.predict(r.predictions)
}

func checksum(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", sha256.Sum256(b)), nil
}

// measureAll takes all rounds.
func (r *hostsRun) measureAll() error {
	tests := measureNames(r.measures)
	list := hostTurns(r.rounds, r.report.cells, tests, r.report.cells[0])
	guess := func(test string) time.Duration { return guessDuration(test, r.stretch) }
	r.progress = &progress{out: r.diag, terminal: onTerminal(r.diag), rounds: r.rounds, last: time.Now(), clock: newClock(list, tests, guess)}
	run := runner{
		turns: list, tests: tests, open: r.open, before: r.progress.before, after: r.progress.after,
		found: r.found, whole: func(int) error { return nil },
		warn: func(err error) {
			r.progress.clear()
			fmt.Fprintf(r.diag, "%v\n", err)
		},
	}
	return run.run(r.ctx)
}

func (r *hostsRun) found(s sample) error {
	text := s.Error
	if v, ok := s.Figures[valueFigure]; ok {
		text = digits(v)
	}
	fmt.Fprintf(r.out, "%3d  %-42s %-9s %s\n", s.Round, s.Implementation, s.Test, text)
	r.report.samples = append(r.report.samples, s)
	return nil
}

// open starts the tunnel of a cell.
func (r *hostsRun) open(ctx context.Context, name string) (bed, error) {
	c := r.cells[name]
	cfg := remote.TunnelConfig{A: r.clients[0], B: r.clients[1], Addrs: r.addrs, UDP: r.port, MTU: c.mtu, Kernel: c.kernel, Network: r.forward}
	if c.daemon != nil {
		cfg.Daemon = func(h *remote.Client) []string {
			argv := append([]string{h.Path(c.daemon[0])}, c.daemon[1:]...)
			if c.underlay == xdpUnderlay {
				argv = append(argv, "--underlay-device", r.facts[slices.Index(r.clients[:], h)].Device)
			}
			return argv
		}
	}
	if c.attach {
		cfg.Spread = [2]string{r.facts[0].Device, r.facts[1].Device}
	}
	if err := r.limit(ctx, c.cores, &cfg); err != nil {
		return nil, err
	}
	t, err := remote.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &hostsBed{Tunnel: t, cell: c, run: r}, nil
}

// limit limits A to a number of cores.
func (r *hostsRun) limit(ctx context.Context, cores int, cfg *remote.TunnelConfig) error {
	cpus := r.facts[0].CPUs
	if cores == len(cpus) && !r.offline {
		return nil
	}
	if !r.offline {
		var names []string
		for _, c := range cpus[:cores] {
			names = append(names, strconv.Itoa(c))
		}
		cfg.OnCPUs = strings.Join(names, ",")
		return nil
	}
	var change []remote.Setting
	for i, c := range cpus {
		if c == 0 {
			continue // it cannot be taken offline
		}
		s := remote.Offline(c)
		if i < cores {
			s.Value = "1"
		}
		change = append(change, s)
	}
	return r.clients[0].Call(ctx, "Set", change, nil)
}

// hostsBed is the tunnel of a cell.
type hostsBed struct {
	*remote.Tunnel
	cell cell
	run  *hostsRun
}

const (
	busyFigure    = "busy_cores" // of A
	plannedFigure = "planned"    // 1 if A used a port plan of B
)

func (b *hostsBed) measure(ctx context.Context, test string) (map[string]float64, error) {
	i := slices.IndexFunc(b.run.measures, func(m measure.Measure) bool { return m.Name == test })
	s, err := b.run.measures[i].OnPath(ctx, b.Tunnel, b.run.stretch)
	if err != nil {
		return nil, err
	}
	figures := map[string]float64{valueFigure: s.Value}
	for name, v := range s.More {
		figures[name] = v
	}
	if slices.Contains(bulkTests(), test) {
		figures[busyFigure] = b.Busy[0]
	}
	if b.cell.implementation == result.Ropewalk && b.cell.spread == result.SpreadOn {
		planned, err := b.Planned(ctx)
		if err != nil {
			return nil, err
		}
		if planned {
			figures[plannedFigure] = 1
		}
	}
	return figures, nil
}
