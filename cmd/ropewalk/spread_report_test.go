// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
)

// sharedAddress returns a report in which peers of one address are skipped, and one is at another address.
func sharedAddress(skipped int, endpoint string) (r spreader.Report) {
	r = spreader.Report{Device: "eth0", Tunnel: "wg0", Port: 51820, Peers: []netip.AddrPort{netip.MustParseAddrPort(endpoint)}, Warnings: []string{"a warning"}}
	for i := range skipped {
		r.Skipped = append(r.Skipped, spreader.SkippedPeer{Key: fmt.Sprintf("key%d", i), Reason: "it belongs to a NAT"})
	}
	return r
}

func TestReportNamesFewSkippedPeers(t *testing.T) {
	var out, errs bytes.Buffer
	(&spreadPrinter{out: &out, errs: &errs}).print(sharedAddress(300, "192.0.2.1:51820"))
	want := "ropewalk: skipping peers key0, key1, key2 and 297 more: it belongs to a NAT\nropewalk: warning: a warning\n"
	if errs.String() != want {
		t.Errorf("got %q, want %q", errs.String(), want)
	}
	errs.Reset()
	(&spreadPrinter{out: &out, errs: &errs}).print(sharedAddress(1, "192.0.2.1:51820"))
	if want := "ropewalk: skipping peer key0: it belongs to a NAT\nropewalk: warning: a warning\n"; errs.String() != want {
		t.Errorf("got %q, want %q", errs.String(), want)
	}
}

func TestMovingPeerPrintsNothing(t *testing.T) {
	var out bytes.Buffer
	p := spreadPrinter{out: &out, errs: &out}
	p.print(sharedAddress(300, "192.0.2.1:51820"))
	out.Reset()
	p.print(sharedAddress(300, "192.0.2.2:51820"))
	if out.Len() > 0 {
		t.Errorf("got %q, want nothing, since only an endpoint has changed", out.String())
	}
	p.print(sharedAddress(301, "192.0.2.2:51820"))
	if want := "ropewalk: skipping peer key300: it belongs to a NAT\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

func TestReportsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := spreadPrinter{out: &out, errs: &out, limit: rate.NewLimiter(rate.Every(time.Minute), 2)}
		for i := range 100 {
			p.print(sharedAddress(i, "192.0.2.1:51820"))
		}
		if lines := strings.Count(out.String(), "skipping"); lines != 1 {
			t.Errorf("got %d lines about skipped peers, want one for the second of two reports", lines)
		}
		p.mu.Lock() // printNext writes out while it holds mu
		out.Reset()
		p.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		p.mu.Lock()
		defer p.mu.Unlock()
		if want := "ropewalk: skipping peers key1, key2, key3 and 95 more: it belongs to a NAT\n"; out.String() != want {
			t.Errorf("got %q, want %q: the last report, after the limit", out.String(), want)
		}
	})
}
