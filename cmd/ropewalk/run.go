// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/pkg/control/quick"
	"github.com/ropewalk/ropewalk/pkg/dataplane/workpool"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/tunnel/daemon"
)

// runOptions are the flags of `ropewalk run`.
type runOptions struct {
	lanes    int
	nice     int
	workers  workersFlag
	mtu      int
	log      logOptions
	settings config.Settings
	metrics  metricsFlags
	device   string // --underlay-device
	takeover bool
	persist  bool
	reflect  uint16
	config   string            // --config
	resolve  conffile.Resolver // of endpoints in config

	keepDaemon bool   // --keep
	keepSocket string // of `ropewalk ready`

	inBackground bool       // --daemon
	foreground   bool       // --foreground, which excludes --daemon
	ready        *readyPipe // of a daemon in the background, else nil
}

func newRunCmd() *cobra.Command {
	o := runOptions{workers: autoWorkers}
	cmd := &cobra.Command{
		Use:   "run INTERFACE",
		Short: "Create a tunnel interface and serve it",
		Long: "run creates a TUN interface and runs its tunnel, until SIGTERM or SIGINT. It also ends when the interface is deleted or\n" +
			"its control socket is removed; as a systemd service it creates the socket again. With --daemon it returns when the\n" +
			"interface is ready and the tunnel runs in the background, with its log in " + quick.DefaultRunDir + "/INTERFACE.log.\n" +
			"The control socket for wg(8) is /var/run/wireguard/INTERFACE.sock. LOG_LEVEL=debug|verbose|info|warn|error|silent sets\n" +
			"the log level; `ropewalk log` changes it at run time. `ropewalk INTERFACE`, or a link to this program named wireguard-go,\n" +
			"is `ropewalk run --daemon INTERFACE` (in the foreground with -f or WG_PROCESS_FOREGROUND=1).",
		Example: "  ropewalk run --daemon wg0\n  ropewalk run --lanes 4 wg0\n  ropewalk run --spread off wg0\n  ropewalk run --takeover wg0\n" +
			"  ropewalk run --keep --persist --config /etc/ropewalk/wg0.conf wg0",
		Args:              usageArgs(cobra.ExactArgs(1)),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("log-level") {
				o.log.level = knownLevel(os.Getenv("LOG_LEVEL"))
			}
			switch {
			case o.keepDaemon:
				return o.keep(cmd.Context(), cmd, args[0])
			case o.keepSocket != "":
				return usageError{errors.New("--keep-socket needs --keep")}
			case o.inBackground && cmd.Flags().Changed("foreground"):
				return usageError{errors.New("--daemon and --foreground exclude each other")}
			case o.inBackground:
				return o.startInBackground(cmd, args[0])
			}
			ready, err := inheritReadyPipe()
			if err != nil {
				return err
			}
			o.ready = ready
			if o.config != "" {
				if o.resolve, err = newResolver(cmd); err != nil {
					return err
				}
			}
			return run(cmd.Context(), args[0], o)
		},
	}
	o.addFlags(cmd)
	return cmd
}

func (o *runOptions) addFlags(cmd *cobra.Command) {
	cmd.Flags().IntVar(&o.lanes, "lanes", 0, "number of lanes, each with a TUN queue, threads and a socket (default: one per CPU)")
	cmd.Flags().IntVar(&o.nice, "nice", daemon.LaneNice,
		"increment of the nice value of the lanes' threads; a negative one runs them before\napplications, as the kernel's network stack does, except while they carry\nmainly single datagrams")
	cmd.Flags().Var(&o.workers, "workers",
		"worker threads that encrypt and decrypt for lanes whose flow exceeds one core; 0: none\n"+
			"(auto: one per CPU beyond two, at most 4; unused while no core is idle)")
	cmd.Flags().IntVar(&o.mtu, "mtu", 0, "MTU of the new interface (default: 1420)")
	for _, s := range config.Table() {
		cmd.Flags().Var(&settingFlag{s, &o.settings}, s.Flag(), plain(s.About))
		completeFlag(cmd, s.Flag(), s.Words()...)
	}
	cmd.Flags().StringVar(&o.device, "underlay-device", "", "network device for AF_XDP (default: the device of the route to most peers)")
	cmd.Flags().BoolVar(&o.takeover, "takeover", false,
		"take over the interface from its running daemon: connections, routes\nand counters are kept (docs/upgrade.md)")
	cmd.Flags().BoolVar(&o.persist, "persist", false,
		"leave the interface with its addresses and routes when the daemon ends or dies, and\n"+
			"reuse it: packets to it are dropped meanwhile (ip link delete removes it)")
	cmd.Flags().BoolVar(&o.keepDaemon, "keep", false,
		"run the daemon in a child process and start another one after a crash; take over a served\n"+
			"interface, and wait after another process has taken over (docs/operations.md#without-up)")
	cmd.Flags().StringVar(&o.keepSocket, "keep-socket", "", "answer ropewalk ready on a Unix socket at `path` (default: none)")
	cmd.Flags().Uint16Var(&o.reflect, "reflect", 0,
		"answer small datagrams to this UDP `port` that came through the tunnel\n(docs/operations.md#without-up; default: off)")
	cmd.Flags().StringVar(&o.config, "config", "",
		"configure the tunnel before it starts, by a `file` with wg's keys and\n"+
			"ropewalk's keys that can change while a tunnel runs (docs/operations.md#without-up)")
	o.log.flags(cmd)
	o.metrics.add(cmd.Flags())
	cmd.Flags().BoolVarP(&o.inBackground, "daemon", "d", false, "return when the interface is ready, and serve it in the background")
	cmd.Flags().BoolVarP(&o.foreground, "foreground", "f", true, "stay in the foreground, as without --daemon")
}

// settingFlag is the flag of a setting.
type settingFlag struct {
	config.Setting
	to *config.Settings
}

// Set implements pflag.Value.
func (f *settingFlag) Set(text string) error { return f.Setting.Set(f.to, text) }

// String implements pflag.Value. pflag also calls it on a zero settingFlag.
func (f *settingFlag) String() string {
	if f.to != nil {
		if text, given := f.Text(f.to); given {
			return text
		}
	}
	return f.Default
}

// Type implements pflag.Value. The help shows it as the value.
func (f *settingFlag) Type() string { return f.Form }

// plain returns a line of Markdown as the lines of a flag's help, without the links that end it.
func plain(markdown string) string {
	text := regexp.MustCompile(` \[[^]]*\]\([^)]*\)\.`).ReplaceAllString(markdown, "")
	var b strings.Builder
	column := 0
	for word := range strings.FieldsSeq(strings.ReplaceAll(text, "`", "")) {
		switch {
		case column == 0:
		case column+len(word) > 80:
			b.WriteByte('\n')
			column = 0
		default:
			b.WriteByte(' ')
		}
		b.WriteString(word)
		column += len(word) + 1
	}
	help := strings.TrimSuffix(b.String(), ".")
	return strings.ToLower(help[:1]) + help[1:]
}

// warnOfDevice logs an underlay device that this host does not have. It may appear later.
func (o *runOptions) warnOfDevice(log *slog.Logger) {
	if o.device == "" {
		return
	}
	if _, err := net.InterfaceByName(o.device); err != nil {
		log.Warn("underlay device does not exist, using UDP sockets until it appears", "device", o.device)
	}
}

// usageArgs turns an error of check into a usage error that shows the usage line.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usageError{fmt.Errorf("%w\nusage: %s", argumentError(cmd, args, check, err), cmd.UseLine())}
		}
		return nil
	}
}

// argumentError replaces cobra's error about the number of arguments by an error that names the
// argument.
func argumentError(cmd *cobra.Command, args []string, check cobra.PositionalArgs, err error) error {
	if strings.HasPrefix(err.Error(), "invalid argument") {
		return err
	}
	for n := len(args) - 1; n >= 0; n-- {
		if check(cmd, args[:n]) == nil {
			return fmt.Errorf("unexpected argument %q", args[n])
		}
	}
	wanted := strings.Fields(cmd.Use)[1:]
	if len(args) < len(wanted) && !strings.Contains(cmd.Use, "|") {
		wanted = wanted[len(args) : len(args)+1]
	}
	return fmt.Errorf("missing argument: %s", strings.Join(wanted, " "))
}

func run(ctx context.Context, name string, o runOptions) error {
	if err := inheritLog(); err != nil {
		return err
	}
	log, level, err := o.log.open(os.Stderr)
	if err != nil {
		return usageError{err}
	}
	tunnel, err := o.daemon(name, log, level)
	if err == nil {
		err = tunnel.Check()
	}
	if err != nil {
		return usageError{err}
	}
	o.warnOfDevice(log)
	return serve(ctx, log, tunnel, o)
}

// daemon returns the options of the daemon according to the flags and the environment.
func (o *runOptions) daemon(name string, log *slog.Logger, level *slog.LevelVar) (daemon.Options, error) {
	queue, err := inheritFD(tunFD)
	if err != nil {
		return daemon.Options{}, err
	}
	control, err := inheritFD(controlFD)
	if err == nil && o.takeover && (queue != 0 || control != 0) {
		err = fmt.Errorf("--takeover needs neither %s nor %s: the old daemon passes its own", tunFD, controlFD)
	}
	start := func(path, created string) (*daemon.Successor, error) {
		return startSuccessor(path, successorArgs(os.Args, name, created))
	}
	if os.Getenv(kept) != "" { // the successor would be no child of this one's parent
		start = nil
	}
	return daemon.Options{
		TUNFD: queue, ControlFD: control,
		Name: name, MTU: o.mtu, Lanes: o.lanes, Workers: int(o.workers), Nice: o.nice,
		Initial: config.Device{Settings: o.settings}, UnderlayDevice: o.device, Persist: o.persist, Reflect: o.reflect,
		KeepSocket: keepsSocket(),
		StateDir:   quick.DefaultRunDir, Version: version, Log: log, Level: level,
		StartSuccessor: start,
		OnHandover:     func(name string, pid int) { announceSuccessor(log, name, pid) },
	}, err
}

// serve creates the interface and its control socket, or takes them over, serves them, and closes them in reverse order.
func serve(ctx context.Context, log *slog.Logger, tunnel daemon.Options, o runOptions) error {
	signal.Ignore(syscall.SIGPIPE) // a closed pipe on stderr must not end the tunnel
	d, exporter, err := o.begin(ctx, log, tunnel)
	if err != nil {
		return err
	}
	defer exporter.close()
	defer d.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	exporter.start(ctx, o.metrics.content(d))
	notifyStopping := notifyReady(ctx, log.With("interface", d.Name()), d.Name())
	o.ready.announce(log, d.Name())
	err = d.Serve(ctx)
	if errors.Is(err, daemon.ErrHandedOver) {
		return keptExit(exitHandedOver, nil)
	}
	notifyStopping()
	return err
}

// begin starts the tunnel and the metrics server. It binds the address of the metrics first, so
// that a wrong address is an error before the tunnel runs. In a takeover the old daemon may still
// hold that address: the tunnel then starts first. The tunnel of a kept daemon also starts first,
// because it has to run whatever else the host does.
func (o *runOptions) begin(ctx context.Context, log *slog.Logger, tunnel daemon.Options) (*daemon.Daemon, *metricsServer, error) {
	listen, open := o.metrics.listen, o.open
	if o.takeover {
		open = receiveHandover
	}
	if o.takeover || os.Getenv(kept) != "" {
		listen = o.metrics.listenOrWait
	}
	exporter, err := listen(log)
	if err != nil {
		return nil, nil, err
	}
	d, err := open(ctx, log, tunnel)
	if err != nil {
		exporter.close()
		return nil, nil, err
	}
	return d, exporter, nil
}

func receiveHandover(ctx context.Context, _ *slog.Logger, tunnel daemon.Options) (*daemon.Daemon, error) {
	d, err := daemon.ReceiveHandover(ctx, tunnel)
	if err != nil {
		return nil, takeoverError(err)
	}
	endFailureReports()
	return d, nil
}

func (o *runOptions) open(ctx context.Context, log *slog.Logger, tunnel daemon.Options) (d *daemon.Daemon, err error) {
	flags := tunnel.Initial.Settings
	if tunnel.Initial, err = o.readConfig(ctx, log); err != nil {
		return nil, err
	}
	tunnel.Initial.Fill(&flags)
	return daemon.Open(tunnel)
}

// readConfig returns the configuration with which the tunnel starts, from --config. The file may
// not exist yet: the program that writes it also configures the running tunnel.
func (o *runOptions) readConfig(ctx context.Context, log *slog.Logger) (config.Device, error) {
	if o.config == "" {
		return config.Device{}, nil
	}
	f, err := conffile.Load(o.config, conffile.Daemon)
	if errors.Is(err, fs.ErrNotExist) {
		log.Warn("configuration file does not exist, the tunnel carries nothing until it is configured", "file", o.config)
		return config.Device{}, nil
	}
	if err != nil {
		return config.Device{}, withHint(quickKeyHint(err))
	}
	for _, warning := range slices.Concat(f.Warnings, f.CheckSettings()) {
		log.Warn("configuration file is valid, but most likely has a mistake", "file", o.config, "warning", warning)
	}
	dev, err := f.Device(ctx, o.resolve)
	dev.Settings = f.Interface.Settings
	return dev, err
}

// workersFlag is a flag whose value is a number of workers, or autoWorkers.
type workersFlag int

// autoWorkers derives the number from the number of CPUs.
const autoWorkers workersFlag = daemon.AutoWorkers

// Set implements pflag.Value.
func (f *workersFlag) Set(s string) error {
	if s == "auto" {
		*f = autoWorkers
		return nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n > workpool.MaxWorkers {
		return fmt.Errorf("want auto, or 0 to %d", workpool.MaxWorkers)
	}
	*f = workersFlag(n)
	return nil
}

// String implements pflag.Value.
func (f *workersFlag) String() string {
	if *f == autoWorkers {
		return "auto"
	}
	return strconv.Itoa(int(*f))
}

// Type implements pflag.Value. The help shows it as the value.
func (*workersFlag) Type() string { return "auto|number" }
