// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
	"github.com/ropewalk/ropewalk/pkg/observe/term"
)

const spreadBarWidth = 40

// spreadStatus is the document that --json prints.
type spreadStatus struct {
	header
	Devices []spreader.DeviceStatus `json:"devices"`
	// Leftovers are directories with pins of network namespaces that probably no longer exist.
	Leftovers []string `json:"leftovers,omitempty"`
	// Daemons are ropewalk's daemons, which spread by themselves.
	Daemons []spreadDaemon `json:"daemons,omitempty"`
}

func newSpreadStatusCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status [DEVICE]",
		Short: "Show spreading on devices, its counters and problems",
		Long: "status shows spreading on one device, or on all devices of this network namespace. It prints the hooks and their\n" +
			"programs, the peers of each tunnel with the recent load of each source port, counters, received datagrams by queue,\n" +
			"and problems. It also names the interfaces of `ropewalk run`, which spread by themselves.",
		Example:           "  ropewalk spread status\n  ropewalk spread status eth0 --json",
		Args:              usageArgs(cobra.MaximumNArgs(1)),
		ValidArgsFunction: completeDevice,
		RunE: func(cmd *cobra.Command, args []string) error {
			device := ""
			if len(args) > 0 {
				device = args[0]
			}
			return printing(showSpread(cmd, device, asJSON))
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// showSpread prints the status of one device. For "" it prints the status of all devices, and
// leftovers of network namespaces. It returns an error for daemons that cannot be asked, after the
// rest is printed.
func showSpread(cmd *cobra.Command, device string, asJSON bool) error {
	st := spreadStatus{header: headerOf("SpreadStatus")}
	host := new(spreader.Host)
	devices, err := host.Status(cmd.Context(), device)
	if err == nil && device == "" {
		st.Leftovers, err = host.StalePins()
	}
	if err != nil {
		return withHint(err)
	}
	st.Devices = devices
	if st.Daemons, err = spreadDaemons(socketDir(), device); errors.Is(err, fs.ErrPermission) {
		return withHint(err) // without rights, devices look as if nothing were attached
	}
	return errors.Join(printSpread(cmd.OutOrStdout(), &st, device, asJSON), err)
}

func printSpread(out io.Writer, st *spreadStatus, device string, asJSON bool) error {
	if asJSON {
		return writeJSON(out, st)
	}
	where := "in this network namespace"
	if device != "" {
		where = "on " + device
	}
	style := term.Style{Color: colored(out)}
	text := renderSpread(st.Devices, where, style)
	if len(st.Devices) == 0 && len(st.Daemons) > 0 {
		text = "no programs of `ropewalk spread attach` " + printable(where) + "\n"
	}
	_, err := io.WriteString(out, text+renderSpreadDaemons(st.Daemons, style)+renderLeftovers(st.Leftovers, style))
	return err
}

func renderLeftovers(dirs []string, s term.Style) string {
	var b strings.Builder
	for _, dir := range dirs {
		fmt.Fprintf(&b, "%s pins of a network namespace that probably no longer exists; if so: rm -r %s\n", s.Bad("✗"), printable(dir))
	}
	return b.String()
}

// renderSpread returns the status as text. It is at most 80 columns wide, except for names of devices and tunnels.
func renderSpread(devices []spreader.DeviceStatus, where string, s term.Style) string {
	if len(devices) == 0 {
		return "no spreading " + printable(where) + "\n"
	}
	var b strings.Builder
	for i, d := range devices {
		if i > 0 {
			b.WriteByte('\n')
		}
		renderSpreadDevice(&b, s, d)
	}
	if f := devices[0].Filter; len(f.Devices) > 0 {
		fmt.Fprintf(&b, "\n%s\n  forged ICMP errors are dropped on %s, %s so far\n", s.Bold("filter"), printable(term.Some(f.Devices, maxFilterDevices)), term.Thousands(f.Dropped))
	}
	return b.String()
}

// maxFilterDevices is the number of devices with the error filter that the text names. --json has all.
const maxFilterDevices = 4

func renderSpreadDevice(b *strings.Builder, s term.Style, d spreader.DeviceStatus) {
	fmt.Fprintf(b, "%s\n", s.Bold(printable(d.Device)))
	renderSpreadHook(b, s, "spread", d.Spread)
	renderSpreadHook(b, s, "gather", d.Gather)
	if d.Paused {
		fmt.Fprintf(b, "  %s  messages keep the listen port until `ropewalk spread resume`\n", s.Bad("paused"))
	}
	for _, p := range d.Problems {
		fmt.Fprintf(b, "  %s %s\n", s.Bad("✗"), printable(p))
	}
	for _, t := range d.Tunnels {
		renderSpreadTunnel(b, s, t)
	}
	if i := slices.IndexFunc(d.Queues, func(n uint64) bool { return n > 0 }); i >= 0 {
		fmt.Fprintf(b, "\n  %s\n", s.Bold("received datagrams by queue"))
		renderSpreadQueues(b, s, d.Queues)
	}
	first := true
	for _, c := range d.Counters {
		if c.Count == 0 {
			continue
		}
		if first {
			b.WriteByte('\n')
			first = false
		}
		fmt.Fprintf(b, "  %14s  %s\n", term.Thousands(c.Count), s.Faint(c.Help))
	}
}

func renderSpreadHook(b *strings.Builder, s term.Style, name string, h spreader.HookStatus) {
	state := s.Good(h.State)
	if h.State != "attached" {
		state = s.Bad(h.State)
	}
	switch {
	case h.State == spreader.UnknownState:
		fmt.Fprintf(b, "  %s  %s\n", name, state)
	case h.Kind == "none":
		fmt.Fprintf(b, "  %s  none\n", name)
	default:
		fmt.Fprintf(b, "  %s  %s by %s, program %d (%s)\n", name, state, h.Kind, h.Program, printable(h.Name))
	}
	if h.Reason != "" {
		fmt.Fprintf(b, "          %s\n", s.Faint(h.Reason))
	}
	for _, n := range h.Before {
		fmt.Fprintf(b, "          runs after %s\n", printable(n))
	}
	for _, n := range h.After {
		fmt.Fprintf(b, "          runs before %s\n", printable(n))
	}
}

func renderSpreadTunnel(b *strings.Builder, s term.Style, t spreader.TunnelStatus) {
	fmt.Fprintf(b, "\n  %s  UDP port %d, source ports in %s\n", s.Bold(printable(t.Name)), t.Port, t.Ports)
	renderInterfaceErrors(b, s, t.Interface)
	for _, p := range t.Peers {
		paused := ""
		switch {
		case p.Stalled:
			paused = ", " + s.Bad("stalled")
		case p.Unseen:
			paused = ", " + s.Bad("its messages leave from another port")
		case p.Paused:
			paused = ", " + s.Bad("paused")
		case len(p.Blocked) > 0:
			paused = ", " + s.Bad(fmt.Sprintf("%d of %s blocked on the path", len(p.Blocked), term.Count(len(p.Lanes), "source port")))
		case p.Ready:
			paused = ", spread to"
		case p.ProbeAnswered:
			paused = ", answers probes: spread begins with more traffic"
		case len(p.Lanes) > 0:
			paused = ", not spread to: answers no probes"
		}
		fmt.Fprintf(b, "    peer %s, gathered from %s%s\n", p.Endpoint, p.Gather, paused)
		var most float64
		for _, l := range p.Lanes {
			most = max(most, l.Share)
		}
		if most == 0 {
			fmt.Fprintf(b, "      %s\n", s.Faint(fmt.Sprintf("no recent traffic on its %s", term.Count(len(p.Lanes), "source port"))))
			continue
		}
		for _, l := range p.Lanes {
			bar := term.Bar(l.Share/most, spreadBarWidth, " ")
			fmt.Fprintf(b, "      %5d %s %5.1f%%\n", l.Port, s.Bar(bar), 100*l.Share)
		}
	}
	renderSkippedPeers(b, s, t.Skipped)
}

// maxSkippedPeers is the number of skipped peers that the text names. --json has all.
const maxSkippedPeers = 10

func renderSkippedPeers(b *strings.Builder, s term.Style, skipped []spreader.SkippedPeer) {
	for _, p := range skipped[:min(len(skipped), maxSkippedPeers)] {
		fmt.Fprintf(b, "    peer %s is %s: %s\n", printable(p.Key), s.Bad("skipped"), printable(p.Reason))
	}
	if n := len(skipped) - maxSkippedPeers; n > 0 {
		fmt.Fprintf(b, "    %s more skipped\n", term.Count(n, "peer"))
	}
}

// renderInterfaceErrors shows what the WireGuard behind gather has refused, if anything.
func renderInterfaceErrors(b *strings.Builder, s term.Style, c *spreader.InterfaceCounters) {
	if c == nil || c.RxErrors+c.RxDropped == 0 {
		return
	}
	fmt.Fprintf(b, "    %s\n", s.Bad(fmt.Sprintf("its WireGuard: %s rx_errors (%s frame, %s length), %s rx_dropped",
		term.Thousands(c.RxErrors), term.Thousands(c.RxFrameErrors), term.Thousands(c.RxLengthErrors), term.Thousands(c.RxDropped))))
}

func renderSpreadQueues(b *strings.Builder, s term.Style, queues []uint64) {
	var sum uint64
	for _, n := range queues {
		sum += n
	}
	most := max(slices.Max(queues), 1)
	for i, n := range queues {
		bar := term.Bar(float64(n)/float64(most), spreadBarWidth, " ")
		fmt.Fprintf(b, "    %3d %s %13s %6s\n", i, s.Bar(bar), term.Thousands(n), term.Percent(n, sum))
	}
}
