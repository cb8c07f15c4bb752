// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/observe/top"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
)

// flowsFlags are the flags of `ropewalk flows`.
type flowsFlags struct {
	json, watch bool
	interval    time.Duration
	order, peer string
	limit       int
}

func newFlowsCmd() *cobra.Command {
	var o flowsFlags
	cmd := &cobra.Command{
		Use:   "flows [INTERFACE | DEVICE]",
		Short: "Show the busiest inner flows, with lane, source port, rate and drops",
		Long: "flows shows the busiest flows inside a tunnel in each direction. It prints a flow's protocol, addresses, ports, peer, lane,\n" +
			"the source port of the messages that carry it, its rates during the interval, its age, and the marks and drops of the\n" +
			"lane's queue. INTERFACE may be omitted if only one interface is served.\n" +
			"The daemon counts flows from the first request to ten seconds after the last one, so no age is longer. Each lane has\n" +
			"entries for 256 flows in each direction, and every flow with more than 1/256 of its traffic has one.\n" +
			"On a DEVICE of `ropewalk spread attach` packets are encrypted already. There flows shows the load and the number of flows\n" +
			"of each source port, and the rates of the counters. --json has the flows' hashes. --peer then is the beginning of\n" +
			"an endpoint.",
		Example:           "  ropewalk flows wg0\n  ropewalk flows wg0 --sort drops --limit 5 --watch\n  ropewalk flows wg0 --json | jq '.flows[].source'",
		Args:              usageArgs(cobra.MaximumNArgs(1)),
		ValidArgsFunction: completeDevice,
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd, socketDir(), args)
		},
	}
	cmd.Flags().BoolVar(&o.json, "json", false, "print JSON; with --watch, one document per interval")
	cmd.Flags().BoolVar(&o.watch, "watch", false, "print the flows of each interval, until interrupted")
	cmd.Flags().DurationVar(&o.interval, "interval", time.Second, "time over which rates are measured")
	cmd.Flags().StringVar(&o.order, "sort", "rate", "`order`: "+strings.Join(top.FlowOrders(), ", "))
	cmd.Flags().IntVar(&o.limit, "limit", 20, "largest number of flows, 0 for all")
	cmd.Flags().StringVar(&o.peer, "peer", "", "only flows of peers whose public `key` begins with this text")
	completeFlag(cmd, "sort", top.FlowOrders()...)
	_ = cmd.RegisterFlagCompletionFunc("peer", func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return nil, noFiles
		}
		return peerKeys(args[0]), noFiles
	})
	return cmd
}

// flowsDocument is the document that --json prints.
type flowsDocument struct {
	header
	Interface string          `json:"interface"`
	Seconds   float64         `json:"seconds"` // over which rates were measured
	Found     int             `json:"found"`   // number of flows before --limit
	Flows     []top.InnerFlow `json:"flows"`
}

func (o *flowsFlags) check() error {
	switch {
	case !slices.Contains(top.FlowOrders(), o.order):
		return unknownWord("order", o.order, top.FlowOrders())
	case o.limit < 0:
		return usageError{fmt.Errorf("--limit: want 0 or more, got %d", o.limit)}
	case o.interval < minFlowsInterval || o.interval > maxFlowsInterval:
		return usageError{fmt.Errorf("--interval: want %v to %v, got %v", minFlowsInterval, maxFlowsInterval, o.interval)}
	}
	return nil
}

// Bounds of --interval. The daemon stops counting ten seconds after a request.
const (
	minFlowsInterval = 10 * time.Millisecond
	maxFlowsInterval = 9 * time.Second
)

func (o *flowsFlags) run(cmd *cobra.Command, dir uapi.Dir, args []string) error {
	if err := o.check(); err != nil {
		return err
	}
	name, err := topInterface(dir, args)
	if err != nil {
		return err
	}
	client, err := dialDaemon(dir, name)
	if err != nil {
		if exitCode(err) == exitUnreachable && len(args) > 0 {
			return o.device(cmd.Context(), cmd.OutOrStdout(), name, err)
		}
		return err
	}
	r := flowReader{dir: dir, name: name, client: client}
	defer func() { r.client.Close() }()
	if err := o.checkPeer(client, name); err != nil {
		return err
	}
	return o.repeat(cmd.Context(), cmd.OutOrStdout(), &r)
}

// checkPeer returns an error if no peer has the key of --peer.
func (o *flowsFlags) checkPeer(c *uapi.Client, name string) error {
	if o.peer == "" {
		return nil
	}
	status, err := c.Status()
	if err != nil {
		return err
	}
	for i := range status.Peers {
		if strings.HasPrefix(status.Peers[i].PublicKey.Base64(), o.peer) {
			return nil
		}
	}
	return fmt.Errorf("no peer of %s has a public key that begins with %q", name, o.peer)
}

// repeat prints the flows of one interval, or of each.
func (o *flowsFlags) repeat(ctx context.Context, out io.Writer, r *flowReader) error {
	before, err := r.read()
	if err != nil {
		return err
	}
	again := func() (*device.FlowReport, error) { return r.readAgain(ctx) }
	return intervals(ctx, o, before, r.read, again, func(before, now *device.FlowReport) error { return o.print(out, before, now) })
}

// intervals prints one interval after before, or each. again reads after a failure of read, if it is not nil.
func intervals[T any](ctx context.Context, o *flowsFlags, before T, read, again func() (T, error), show func(before, now T) error) error {
	for {
		if err := pause(ctx, o.interval); err != nil {
			if o.watch { // which ends only so
				return nil
			}
			return err
		}
		now, err := read()
		if err != nil && o.watch && again != nil {
			if before, err = again(); err == nil {
				continue
			}
		}
		if err != nil {
			return err
		}
		if err := show(before, now); err != nil || !o.watch {
			return err
		}
		before = now
	}
}

func (o *flowsFlags) print(out io.Writer, before, now *device.FlowReport) error {
	flows := slices.DeleteFunc(top.CompareFlows(before, now), func(f top.InnerFlow) bool { return !strings.HasPrefix(f.Peer, o.peer) })
	top.SortFlows(flows, o.order)
	found := len(flows)
	if o.limit > 0 {
		flows = flows[:min(found, o.limit)]
	}
	if o.json {
		return writeJSON(out, flowsDocument{
			headerOf("Flows"), now.Interface, float64(now.Now-max(before.Now, now.Since)) / 1e9, found, flows,
		})
	}
	text := top.RenderFlows(flows, top.Options{Width: outputWidth(out), Color: colored(out)})
	if found > len(flows) {
		text += fmt.Sprintf("%d more, see --limit\n", found-len(flows))
	}
	if o.watch {
		text += "\n"
	}
	_, err := io.WriteString(out, text)
	return err
}

// flowReader reads the flows of an interface from its daemon.
type flowReader struct {
	dir    uapi.Dir
	name   string
	client *uapi.Client
}

func (r *flowReader) read() (*device.FlowReport, error) {
	report := new(device.FlowReport)
	return report, readFlows(r.client, r.name, report)
}

// readFlows requests the flows of an interface.
func readFlows(c *uapi.Client, name string, into *device.FlowReport) error {
	err := c.Flows(into)
	for _, unsupported := range []error{syscall.EPROTO, syscall.EOPNOTSUPP, syscall.ECONNRESET, io.EOF, io.ErrUnexpectedEOF} {
		if errors.Is(err, unsupported) {
			return fmt.Errorf("the daemon of %s is not ropewalk, or too old for this command: %w", name, err)
		}
	}
	return err
}

// redialAttempts and redialInterval are for a daemon that is replaced or restarted.
const (
	redialAttempts = 50
	redialInterval = 100 * time.Millisecond
)

// readAgain reads from the daemon that has the interface now, after a failure.
func (r *flowReader) readAgain(ctx context.Context) (report *device.FlowReport, err error) {
	for range redialAttempts {
		if err := pause(ctx, redialInterval); err != nil {
			return nil, err
		}
		var client *uapi.Client
		if client, err = dialDaemon(r.dir, r.name); err != nil {
			continue
		}
		r.client.Close()
		r.client = client
		if report, err = r.read(); err == nil {
			return report, nil
		}
	}
	return nil, err
}
