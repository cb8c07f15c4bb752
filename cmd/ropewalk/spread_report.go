// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
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

// spreadPrinter prints the parts of a Report that are not in the one printed before.
type spreadPrinter struct {
	out, errs io.Writer
	limit     *rate.Limiter // nil for none

	mu   sync.Mutex
	head string
	last spreader.Report
	next *spreader.Report // waits for the limit
}

// print prints a report, later if there were too many. A report that waits is replaced by the next one.
func (p *spreadPrinter) print(r spreader.Report) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next != nil {
		p.next = &r
		return
	}
	if p.limit != nil {
		if wait := p.limit.Reserve().Delay(); wait > 0 {
			p.next = &r
			time.AfterFunc(wait, p.printNext)
			return
		}
	}
	p.printNow(r)
}

func (p *spreadPrinter) printNext() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.printNow(*p.next)
	p.next = nil
}

func (p *spreadPrinter) printNow(r spreader.Report) {
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
		noun := "peer"
		if len(of) > 1 {
			noun = "peers"
		}
		fmt.Fprintf(p.errs, "ropewalk: skipping %s %s: %s\n", noun, term.Some(of, namedPeers), printable(reason))
	}
}
