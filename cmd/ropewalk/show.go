// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/show"
	"github.com/ropewalk/ropewalk/pkg/uapi"
)

func newShowCmd() *cobra.Command {
	var lanes bool
	cmd := &cobra.Command{
		Use:   "show [INTERFACE | all | interfaces] [SELECTOR]",
		Short: "Show interfaces and peers, as wg(8) does",
		Long: "show prints what `wg show` prints, for interfaces that a userspace process serves: ropewalk or another. Selectors,\n" +
			"for scripts: " + selectorNames() + ".\n" +
			"--lanes adds what wg does not know of: lanes, and how the flows to each peer are spread.\n" +
			"WG_COLOR_MODE=always|never|auto and NO_COLOR control colours; WG_HIDE_KEYS=never shows secret keys.",
		Example: "  ropewalk show\n  ropewalk show wg0 --lanes\n  ropewalk show wg0 latest-handshakes",
		Args:    usageArgs(cobra.MaximumNArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			s := shower{dir: uapi.DefaultDir, out: cmd.OutOrStdout(), opt: showOptions(cmd.OutOrStdout()), now: time.Now}
			s.opt.Lanes = lanes
			return s.run(args)
		},
	}
	cmd.Flags().BoolVar(&lanes, "lanes", false, "show lanes and spreading too, below what wg shows")
	return cmd
}

func selectorNames() string {
	var names []string
	for _, sel := range show.Selectors() {
		names = append(names, string(sel))
	}
	return strings.Join(names, ", ")
}

func showOptions(out io.Writer) show.Options {
	f, ok := out.(*os.File)
	terminal := ok && term.IsTerminal(int(f.Fd()))
	return show.Options{
		Color:    show.ColorMode(os.Getenv("WG_COLOR_MODE"), os.Getenv("NO_COLOR") != "", terminal),
		ShowKeys: os.Getenv("WG_HIDE_KEYS") == "never",
		ZoneName: interfaceName,
	}
}

// interfaceName returns "" for an index that no interface has here, which is then printed as a number.
func interfaceName(index uint32) string {
	ifi, err := net.InterfaceByIndex(int(index))
	if err != nil {
		return ""
	}
	return ifi.Name
}

// shower is one run of `ropewalk show`.
type shower struct {
	dir uapi.Dir
	out io.Writer
	opt show.Options
	now func() time.Time
}

func (s *shower) run(args []string) error {
	target := "all"
	if len(args) > 0 {
		target = args[0]
	}
	var sel show.Selector
	if len(args) > 1 {
		var ok bool
		if sel, ok = show.ParseSelector(args[1]); !ok || target == "interfaces" {
			return usageError{fmt.Errorf("invalid parameter %q: want one of %s", args[1], selectorNames())}
		}
	}
	if s.opt.Lanes && (sel != "" || target == "interfaces") {
		return usageError{errors.New("--lanes is for the form without a selector")}
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
	err = s.addLanes(&st)
	return errors.Join(s.print([]config.Status{st}, sel, false), err)
}

func (s *shower) interfaces() error {
	names, err := s.dir.Interfaces()
	if err != nil {
		return err
	}
	return show.Interfaces(s.out, names)
}

// all shows what it can, even where one interface cannot be reached, and then fails.
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
		if err := s.addLanes(&st); err != nil {
			errs = append(errs, err)
		}
		devices = append(devices, st)
	}
	return errors.Join(append(errs, s.print(devices, sel, true))...)
}

func (s *shower) print(devices []config.Status, sel show.Selector, withName bool) error {
	if sel == "" {
		// The clock is read last: a handshake during the queries would seem to come from the future.
		opt := s.opt
		opt.Now = s.now()
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
	client, err := s.dir.Dial(name)
	if uapi.IsRefused(err) {
		return config.Status{}, s.notServed(name)
	}
	if err != nil {
		return config.Status{}, err
	}
	defer client.Close()
	return client.Status()
}

// addLanes adds what --lanes asks for. Other daemons than ropewalk's cannot tell, and are shown without.
func (s *shower) addLanes(st *config.Status) error {
	if !s.opt.Lanes {
		return nil
	}
	client, err := s.dir.Dial(st.Name)
	if err != nil {
		return err
	}
	defer client.Close()
	var stats struct {
		Spread *config.SpreadReport `json:"spread"`
	}
	if err := client.Stats(&stats); err != nil {
		return fmt.Errorf("the lanes of %s are not shown: %w", st.Name, err)
	}
	if stats.Spread == nil {
		return fmt.Errorf("the lanes of %s are not shown: its daemon does not tell them", st.Name)
	}
	st.AddSpread(*stats.Spread)
	return nil
}

// notServed tells an interface of the kernel's own WireGuard, or of any other kind, from none.
func (s *shower) notServed(name string) error {
	if _, err := net.InterfaceByName(name); err == nil {
		return fmt.Errorf("interface %s is not served by a userspace process (no socket in %s); for WireGuard in the kernel use wg(8)", name, s.dir)
	}
	return fmt.Errorf("no such interface: %s", name)
}
