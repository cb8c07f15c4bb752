// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
	"github.com/ropewalk/ropewalk/pkg/observe/term"
)

const (
	// reportInterval and reportBurst bound the reports of a watch. Peers cause them by roaming.
	reportInterval = time.Minute / 8
	reportBurst    = 8
	// namedPeers bounds the peers that are named of those skipped for one reason.
	namedPeers = 3
)

// spreadPrinter prints what a Report has that the one printed before it had not.
type spreadPrinter struct {
	out, errs io.Writer
	limit     *rate.Limiter // nil for none
	head      string
	last      spreader.Report
}

// print leaves out a report beyond the limit. The next one has its changes.
func (p *spreadPrinter) print(r spreader.Report) {
	if p.limit != nil && !p.limit.Allow() {
		return
	}
	head := fmt.Sprintf("%s: %s (UDP port %d) spreads over %s to %s; spread by %s, gather by %s", printable(strings.Join(append([]string{r.Device}, r.AlsoOn...), ", ")),
		printable(r.Tunnel), r.Port, term.Count(len(r.Lanes), "port"), term.Count(len(r.Peers), "peer"), r.Spread, r.Gather)
	if head != p.head {
		fmt.Fprintln(p.out, head)
	}
	p.printSkipped(r.Skipped)
	for _, w := range r.Warnings {
		if !slices.Contains(p.last.Warnings, w) {
			fmt.Fprintf(p.errs, "ropewalk: warning: %s\n", printable(w))
		}
	}
	p.head, p.last = head, r
}

// printSkipped prints one line for each reason for which peers are skipped now.
func (p *spreadPrinter) printSkipped(all []spreader.SkippedPeer) {
	known := make(map[spreader.SkippedPeer]bool, len(p.last.Skipped))
	for _, s := range p.last.Skipped {
		known[s] = true
	}
	var reasons []string
	keys := map[string][]string{}
	for _, s := range all {
		if known[s] {
			continue
		}
		if keys[s.Reason] == nil {
			reasons = append(reasons, s.Reason)
		}
		keys[s.Reason] = append(keys[s.Reason], s.Key)
	}
	for _, reason := range reasons {
		of := keys[reason]
		named := strings.Join(of[:min(namedPeers, len(of))], ", ")
		if more := len(of) - namedPeers; more > 0 {
			named += fmt.Sprintf(" and %d more", more)
		}
		noun := "peer"
		if len(of) > 1 {
			noun = "peers"
		}
		fmt.Fprintf(p.errs, "ropewalk: skipping %s %s: %s\n", noun, named, printable(reason))
	}
}
