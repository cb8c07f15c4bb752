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

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/observe/portplan"
	"github.com/ropewalk/ropewalk/pkg/observe/term"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
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
	// planMaxWork limits flows times rounds, and so the duration of the command.
	planMaxWork = 5_000_000
)

func newSpreadPlanCmd() *cobra.Command {
	var o spreadPlanOptions
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Show how flows would load a NIC's receive queues",
		Long: "plan shows how flows would load a NIC's receive queues. It simulates flows of equal rate with random inner addresses\n" +
			"and ports. It compares three ways to choose the outer source port of a flow. The first is a hash, the second the\n" +
			"least loaded port. The third is the least loaded of the ports that the receiver selects with its NIC's Toeplitz key\n" +
			"and indirection table. The simulation runs the code of the datapath and changes nothing. With --device it reads the\n" +
			"key and the table of a NIC of this host.",
		Example: "  ropewalk spread plan --flows 16 --queues 16\n  ropewalk spread plan --device eth0 --from 192.0.2.7 --to 198.51.100.1:51820",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := o.simulation(cmd.Flags().Changed)
			if err != nil {
				return err
			}
			return spreadPlanMain(cmd.OutOrStdout(), s, o.json)
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.flows, "flows", 16, "number of inner flows, all of the same rate")
	f.IntVar(&o.queues, "queues", 16, "number of receive queues of the NIC")
	f.IntVar(&o.lanes, "lanes", 0, "number of outer source ports; 0: one per queue")
	f.StringVar(&o.key, "key", hex.EncodeToString(spread.MicrosoftKey()), "RSS key in hexadecimal, with or without colons, or random (from --seed; many drivers\nuse a random key)")
	f.StringVar(&o.indir, "indir", "equal", "indirection table: a comma-separated list of queues, or equal")
	f.StringVar(&o.device, "device", "", "read the RSS key and indirection table of this device")
	f.StringVar(&o.from, "from", "198.51.100.1", "address of the sender")
	f.StringVar(&o.to, "to", "203.0.113.1:51820", "endpoint of the receiver")
	f.StringVar(&o.ports, "ports", spread.DefaultPorts.String(), "source ports to choose from")
	f.Uint64Var(&o.seed, "seed", 1, "seed of the random flows")
	f.IntVar(&o.rounds, "rounds", 101, "number of rounds, each with other flows; the first one is drawn")
	f.BoolVar(&o.json, "json", false, "print JSON")
	return cmd
}

func spreadPlanMain(out io.Writer, s portplan.Simulation, asJSON bool) error {
	report, err := s.Run()
	if err != nil {
		return err
	}
	if asJSON {
		return writeJSON(out, struct {
			header
			*portplan.Report
		}{headerOf("SpreadPlan"), report})
	}
	style := term.Style{Color: colored(out)}
	if _, err := io.WriteString(out, report.Render(style)); err != nil {
		return fmt.Errorf("writing the plan: %w", err)
	}
	return nil
}

// simulation returns the simulation according to the flags. changed reports whether a flag was given.
func (o *spreadPlanOptions) simulation(changed func(flag string) bool) (portplan.Simulation, error) {
	s := portplan.Simulation{Flows: o.flows, Lanes: o.lanes, Rounds: o.rounds, Seed: o.seed}
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
		return s, o.rssFromFlags(&s, changed)
	}
	for _, flag := range []string{"key", "indir", "queues"} {
		if changed(flag) {
			return s, usageError{fmt.Errorf("--%s and --device cannot be combined", flag)}
		}
	}
	rss, err := hostnet.ReadRSS(o.device)
	s.RSS, s.Source = rss.RSS, fmt.Sprintf("%s (%s)", o.device, rss.Driver)
	return s, err
}

func inRange(flag string, v, lowest, highest int) error {
	if v < lowest || v > highest {
		return fmt.Errorf("--%s %d: want %d to %d", flag, v, lowest, highest)
	}
	return nil
}

// addresses sets the endpoints and the candidate ports of s.
func (o *spreadPlanOptions) addresses(s *portplan.Simulation) (err error) {
	if s.From, err = netip.ParseAddr(o.from); err != nil {
		return fmt.Errorf("--from: %w", err)
	}
	if s.To, err = netip.ParseAddrPort(o.to); err != nil {
		return fmt.Errorf("--to: %w", err)
	}
	if s.From.Unmap().Is4() != s.To.Addr().Unmap().Is4() {
		return fmt.Errorf("--from %s and --to %s: want addresses of the same IP version", s.From, s.To)
	}
	if s.Candidates, err = config.ParsePorts(o.ports); err != nil {
		return fmt.Errorf("--ports: %w", err)
	}
	return nil
}

// rssFromFlags sets the RSS key and table of s according to the flags.
func (o *spreadPlanOptions) rssFromFlags(s *portplan.Simulation, changed func(string) bool) error {
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
		return usageError{errors.New("--queues cannot be combined with a list in --indir")}
	}
	if s.RSS.Indirection, err = parseIndirection(o.indir); err != nil {
		return usageError{fmt.Errorf("--indir: %w", err)}
	}
	return nil
}

// planRandomKey is the value of --key for a random key, as drivers generate one (netdev_rss_key_fill).
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
