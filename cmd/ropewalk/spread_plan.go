// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/hostnet"
	"github.com/ropewalk/ropewalk/pkg/picture"
	"github.com/ropewalk/ropewalk/pkg/spread"
	"github.com/ropewalk/ropewalk/pkg/spreadplan"
)

// spreadPlanOptions are the flags of `ropewalk spread plan`.
type spreadPlanOptions struct {
	flows, queues, lanes, rounds int
	key, indir, device           string
	from, to, ports              string
	seed                         uint64
	json                         bool
}

const (
	planMaxFlows  = 10_000
	planMaxQueues = 4096
	planMaxRounds = 10_000
	planMaxTable  = 1 << 16
	// planMaxWork bounds flows times rounds, so that the command ends.
	planMaxWork = 5_000_000
)

func newSpreadPlanCmd() *cobra.Command {
	var o spreadPlanOptions
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Show how flows would load a NIC's receive queues",
		Long: "plan draws the load per receive queue of equal flows with random inner addresses and ports, for three ways to\n" +
			"choose a flow's outer source port: by its hash alone; the least loaded port; the least loaded of ports that the\n" +
			"receiver planned, knowing its NIC's Toeplitz key and indirection table. It runs the code that the datapath runs,\n" +
			"and changes nothing. With --device it reads key and table of a NIC of this host.",
		Example: "  ropewalk spread plan --flows 16 --queues 16\n  ropewalk spread plan --device eth0 --from 192.0.2.7 --to 198.51.100.1:51820",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := o.scene(cmd.Flags().Changed)
			if err != nil {
				return err
			}
			return spreadPlanMain(cmd.OutOrStdout(), s, o.json)
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.flows, "flows", 16, "inner flows, all of one rate")
	f.IntVar(&o.queues, "queues", 16, "receive queues of the NIC")
	f.IntVar(&o.lanes, "lanes", 0, "outer source ports to use; 0 for one per queue")
	f.StringVar(&o.key, "key", hex.EncodeToString(spread.MicrosoftKey()), "RSS key: hexadecimal, with colons or without, or random (by --seed, as many drivers do)")
	f.StringVar(&o.indir, "indir", "equal", "indirection table: queues separated by commas, or equal")
	f.StringVar(&o.device, "device", "", "read key and table of this device")
	f.StringVar(&o.from, "from", "198.51.100.1", "sender's address")
	f.StringVar(&o.to, "to", "203.0.113.1:51820", "receiver's endpoint")
	f.StringVar(&o.ports, "ports", spread.DefaultPorts.String(), "source ports to choose from")
	f.Uint64Var(&o.seed, "seed", 1, "seed of the random flows")
	f.IntVar(&o.rounds, "rounds", 101, "rounds, each with other flows; the first is drawn")
	f.BoolVar(&o.json, "json", false, "print JSON")
	return cmd
}

func spreadPlanMain(out io.Writer, s spreadplan.Scene, asJSON bool) error {
	report, err := s.Run()
	if err != nil {
		return err
	}
	if asJSON {
		return writeJSON(out, struct {
			header
			*spreadplan.Report
		}{headerOf("SpreadPlan"), report})
	}
	style := picture.Style{Color: colored(out)}
	if _, err := io.WriteString(out, report.Render(style)); err != nil {
		return fmt.Errorf("writing the picture: %w", err)
	}
	return nil
}

// scene makes what is to be played of the flags. changed tells which of them were given.
func (o *spreadPlanOptions) scene(changed func(flag string) bool) (spreadplan.Scene, error) {
	s := spreadplan.Scene{Flows: o.flows, Lanes: o.lanes, Rounds: o.rounds, Seed: o.seed}
	err := errors.Join(
		inRange("flows", o.flows, 1, planMaxFlows), inRange("queues", o.queues, 1, planMaxQueues),
		inRange("lanes", o.lanes, 0, spread.MaxPorts), inRange("rounds", o.rounds, 1, planMaxRounds), o.addresses(&s),
	)
	if err == nil && o.flows*o.rounds > planMaxWork {
		err = fmt.Errorf("--flows %d with --rounds %d: want a product of at most %d", o.flows, o.rounds, planMaxWork)
	}
	if err != nil {
		return s, usageError{err}
	}
	if o.device == "" {
		return s, o.madeUp(&s, changed)
	}
	for _, flag := range []string{"key", "indir", "queues"} {
		if changed(flag) {
			return s, usageError{fmt.Errorf("--%s and --device exclude each other", flag)}
		}
	}
	rss, err := hostnet.ReadRSS(o.device)
	s.RSS, s.Source = rss.RSS, fmt.Sprintf("%s (%s)", o.device, rss.Driver)
	return s, err
}

func inRange(flag string, v, least, most int) error {
	if v < least || v > most {
		return fmt.Errorf("--%s %d: want %d to %d", flag, v, least, most)
	}
	return nil
}

func (o *spreadPlanOptions) addresses(s *spreadplan.Scene) (err error) {
	if s.From, err = netip.ParseAddr(o.from); err != nil {
		return fmt.Errorf("--from: %w", err)
	}
	if s.To, err = netip.ParseAddrPort(o.to); err != nil {
		return fmt.Errorf("--to: %w", err)
	}
	if s.From.Unmap().Is4() != s.To.Addr().Unmap().Is4() {
		return fmt.Errorf("--from %s and --to %s: want one IP version", s.From, s.To)
	}
	if s.Candidates, err = config.ParsePorts(o.ports); err != nil {
		return fmt.Errorf("--ports: %w", err)
	}
	return nil
}

// madeUp sets the RSS that the flags describe.
func (o *spreadPlanOptions) madeUp(s *spreadplan.Scene, changed func(string) bool) error {
	key, err := o.parseKey()
	if err != nil {
		return usageError{fmt.Errorf("--key: %w", err)}
	}
	s.RSS, s.Source = spread.RSS{Key: key, Indirection: spread.EqualIndirection(o.queues)}, "Microsoft's RSS key"
	if changed("key") {
		s.Source = "the given RSS key"
	}
	if o.key == planRandomKey {
		s.Source = "a random RSS key"
	}
	if o.indir == "equal" {
		return nil
	}
	if changed("queues") {
		return usageError{errors.New("--queues and a list of --indir exclude each other")}
	}
	if s.RSS.Indirection, err = parseIndirection(o.indir); err != nil {
		return usageError{fmt.Errorf("--indir: %w", err)}
	}
	return nil
}

// planRandomKey stands for a key such as drivers make when they start (netdev_rss_key_fill).
const planRandomKey = "random"

func (o *spreadPlanOptions) parseKey() ([]byte, error) {
	if o.key != planRandomKey {
		return hex.DecodeString(strings.ReplaceAll(o.key, ":", ""))
	}
	rng := rand.New(rand.NewPCG(o.seed, 1))
	key := make([]byte, len(spread.MicrosoftKey()))
	for i := range key {
		key[i] = byte(rng.Uint32())
	}
	return key, nil
}

func parseIndirection(list string) ([]uint32, error) {
	fields := strings.Split(list, ",")
	if len(fields) > planMaxTable {
		return nil, fmt.Errorf("%d entries: want at most %d", len(fields), planMaxTable)
	}
	table := make([]uint32, len(fields))
	for i, field := range fields {
		q, err := strconv.ParseUint(strings.TrimSpace(field), 10, 32)
		if err != nil || q >= planMaxQueues {
			return nil, fmt.Errorf("queue %q: want 0 to %d", field, planMaxQueues-1)
		}
		table[i] = uint32(q)
	}
	return table, nil
}
