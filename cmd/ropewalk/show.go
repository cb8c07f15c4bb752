// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/ropewalk/ropewalk/pkg/control/show"
	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// showFlags are the flags of `ropewalk show`.
type showFlags struct{ lanes, json, keys bool }

func newShowCmd() *cobra.Command {
	var o showFlags
	cmd := &cobra.Command{
		Use:     "show [INTERFACE | all | interfaces] [SELECTOR]",
		Aliases: []string{"status"},
		Short:   "Show interfaces and peers, as wg(8) does",
		Long: "show prints interfaces and peers as `wg show` does, for every interface that a userspace process serves: ropewalk or\n" +
			"another. Selectors, for scripts:\n" + selectorLines() + "\n" +
			"--lanes adds ropewalk's own state and counters. It shows the spreading of flows to each peer, the traffic of each lane\n" +
			"and of the workers, the cipher, the underlay, the selection of lanes, and drops by reason. --json prints one document,\n" +
			"without secret keys unless --show-keys is given. WG_COLOR_MODE=always|never|auto and NO_COLOR control colours;\n" +
			"WG_HIDE_KEYS=never shows secret keys, but not in JSON.",
		Example: "  ropewalk show\n  ropewalk show wg0 --lanes\n  ropewalk show wg0 latest-handshakes\n" +
			"  ropewalk show --json | jq '.interfaces[].peers[].endpoint'",
		Args:              usageArgs(cobra.MaximumNArgs(2)),
		ValidArgsFunction: completeShow,
		RunE: func(cmd *cobra.Command, args []string) error {
			s := shower{dir: socketDir(), out: cmd.OutOrStdout(), opt: showOptions(cmd.OutOrStdout()), now: time.Now}
			s.apply(o)
			return s.run(args)
		},
	}
	cmd.Flags().BoolVar(&o.lanes, "lanes", false, "also show lanes, workers, spreading, underlay and drops")
	cmd.Flags().BoolVar(&o.json, "json", false, "print JSON; with --lanes, including its statistics")
	cmd.Flags().BoolVar(&o.keys, "show-keys", false, "show private and preshared keys")
	return cmd
}

// selectorLines returns the selectors, six per line.
func selectorLines() string {
	var lines []string
	for names := range slices.Chunk(selectors(), 6) {
		lines = append(lines, "  "+strings.Join(names, " "))
	}
	return strings.Join(lines, "\n")
}

func showOptions(out io.Writer) show.Options {
	f, ok := out.(*os.File)
	terminal := ok && term.IsTerminal(int(f.Fd()))
	return show.Options{
		Color:    colorMode(terminal),
		ShowKeys: os.Getenv("WG_HIDE_KEYS") == "never",
		ZoneName: interfaceName,
	}
}

// interfaceName returns the name of an interface, or "" if there is none with that index: the caller then prints the index.
func interfaceName(index uint32) string {
	ifi, err := net.InterfaceByIndex(int(index))
	if err != nil {
		return ""
	}
	return ifi.Name
}

// shower is one run of `ropewalk show`.
type shower struct {
	dir  uapi.Dir
	out  io.Writer
	opt  show.Options
	json bool
	now  func() time.Time
}

// apply applies the flags. JSON is often passed on, so it has secret keys only with --show-keys.
func (s *shower) apply(o showFlags) {
	s.json, s.opt.Lanes = o.json, o.lanes
	s.opt.ShowKeys = o.keys || (s.opt.ShowKeys && !o.json)
}

// parse returns the interface to show, "all" for all of them, and the selector.
func (s *shower) parse(args []string) (target string, sel show.Selector, err error) {
	target = "all"
	if len(args) > 0 {
		target = args[0]
	}
	if len(args) > 1 {
		var ok bool
		if sel, ok = show.ParseSelector(args[1]); !ok {
			return "", "", unknownWord("selector", args[1], selectors())
		}
		if target == "interfaces" {
			return "", "", usageError{fmt.Errorf("interfaces takes no selector, got %q", args[1])}
		}
	}
	if (s.opt.Lanes || s.json) && (sel != "" || target == "interfaces") {
		return "", "", usageError{errors.New("--lanes and --json cannot be combined with a selector")}
	}
	return target, sel, nil
}

func (s *shower) run(args []string) error {
	target, sel, err := s.parse(args)
	if err != nil {
		return err
	}
	switch target {
	case "interfaces":
		return s.interfaces()
	case "all":
		return s.all(sel)
	}
	st, err := s.status(target)
	if err != nil {
		return err
	}
	err = s.addStats(&st, sel)
	return errors.Join(s.print([]config.Status{st}, sel, false), err)
}

func (s *shower) interfaces() error {
	names, err := s.dir.Interfaces()
	if err != nil {
		return err
	}
	return show.Interfaces(s.out, names)
}

// all shows all interfaces. If some cannot be read, it shows the others and returns an error.
func (s *shower) all(sel show.Selector) error {
	names, err := s.dir.Interfaces()
	if err != nil {
		return err
	}
	var devices []config.Status
	var errs []error
	for _, name := range names {
		st, err := s.status(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if err := s.addStats(&st, sel); err != nil {
			errs = append(errs, err)
		}
		devices = append(devices, st)
	}
	return errors.Join(append(errs, s.print(devices, sel, true))...)
}

func (s *shower) print(devices []config.Status, sel show.Selector, withName bool) error {
	if sel == "" {
		// The clock is read last: otherwise a handshake during the queries would be in the future.
		opt := s.opt
		opt.Now = s.now()
		if s.json {
			return show.JSON(s.out, devices, opt)
		}
		return show.Pretty(s.out, devices, opt)
	}
	for _, st := range devices {
		if err := show.Select(s.out, st, sel, withName, s.opt); err != nil {
			return err
		}
	}
	return nil
}

func (s *shower) status(name string) (config.Status, error) {
	client, err := dialDaemon(s.dir, name)
	if err != nil {
		return config.Status{}, err
	}
	defer client.Close()
	return client.Status()
}

// addStats adds what ropewalk's daemon reports beside the status of wg(8). Other daemons report nothing: with --lanes that is an error.
func (s *shower) addStats(st *config.Status, sel show.Selector) error {
	if sel != "" {
		return nil
	}
	client, err := dialDaemon(s.dir, st.Name)
	if err != nil {
		return err
	}
	defer client.Close()
	stats := new(show.Stats)
	err = client.Stats(stats)
	switch {
	case err != nil && !s.opt.Lanes:
		return nil
	case err != nil:
		return fmt.Errorf("reading the lanes of %s: %w", st.Name, err)
	case stats.Spread == nil && s.opt.Lanes:
		return fmt.Errorf("reading the lanes of %s: its daemon does not report them", st.Name)
	}
	st.AddHandshakes(stats.FailingHandshakes)
	st.AddNames(stats.Names)
	if stats.PostQuantum != nil {
		st.AddPostQuantum(*stats.PostQuantum)
	}
	s.addNamespace(st.Name, hostnet.Namespace(stats.TUN.NetNS))
	if !s.opt.Lanes {
		return nil
	}
	st.AddSpread(*stats.Spread)
	st.AddPathMTU(stats.PathMTU)
	if s.opt.Stats == nil {
		s.opt.Stats = map[string]*show.Stats{}
	}
	s.opt.Stats[st.Name] = stats
	return nil
}

// addNamespace notes the network namespace of an interface that is not in this one.
func (s *shower) addNamespace(name string, ns hostnet.Namespace) {
	if here, err := hostnet.CurrentNamespace(); err != nil || ns == 0 || ns == here {
		return
	}
	if s.opt.NetNS == nil {
		s.opt.NetNS = map[string]string{}
	}
	s.opt.NetNS[name] = ns.String()
}
