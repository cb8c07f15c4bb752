// SPDX-License-Identifier: Apache-2.0

package top

import (
	"strconv"

	"github.com/ropewalk/ropewalk/pkg/observe/term"
)

// Render draws a frame within Width and Height. Every line, also the last, ends with a line feed. A device has one view beside Help.
func (f *SpreadFrame) Render(o Options) string {
	r := spreadRenderer{renderer{Options: o, keys: spreadKeys}, f}
	return r.paint(r.screen(r.header(), r.body))
}

// MaxScroll is the largest Options.Scroll that makes a difference.
func (f *SpreadFrame) MaxScroll(o Options) int {
	if o.Height == 0 {
		return 0
	}
	r := spreadRenderer{renderer{Options: o, keys: spreadKeys}, f}
	return r.maxScroll(r.header(), r.body)
}

// spreadRenderer draws one SpreadFrame.
type spreadRenderer struct {
	renderer
	spread *SpreadFrame
}

func (r *spreadRenderer) header() []line {
	title := line{{term.Clean(r.spread.Device), bold}, {"  " + term.Count(len(r.spread.Flows), "flow") + " sending", plain}}
	view := Flows
	if r.View == Help {
		view = Help
	}
	return []line{r.right(title, r.status(view.String(), r.spread.Seconds))}
}

// body returns all lines.
func (r *spreadRenderer) body(int) []line {
	if r.View == Help {
		return help(spreadHelp)
	}
	return r.stack(r.peerTable(), r.portTable(), r.rateTable())
}

func (r *spreadRenderer) peerTable() *table {
	t := r.table(
		"no messages from or to peers",
		column{title: "TUNNEL", rank: 2}, column{title: "PEER"}, column{title: "RX", rate: true}, column{title: "TX", rate: true},
		column{title: "PUBLIC KEY", rank: 1},
	)
	for i := range r.spread.Peers {
		p := &r.spread.Peers[i]
		t.rows = append(t.rows, []cell{
			text(term.Clean(p.Tunnel)), text(p.Peer.String()), text(bits(p.Received)), text(bits(p.Sent)), text(term.Clean(p.PublicKey)),
		})
	}
	return t
}

func (r *spreadRenderer) portTable() *table {
	t := r.table(
		"no source ports",
		column{title: "TUNNEL", rank: 4}, column{title: "PEER", rank: 1}, column{title: "PORT", right: true}, column{title: "FLOWS", rank: 3, right: true},
		column{title: "RECENT", rank: 5, right: true}, column{title: "SHARE", rank: 2, bar: true}, column{right: true}, column{title: "STATE"},
	)
	for i := range r.spread.Ports {
		p := &r.spread.Ports[i]
		flows := 0
		if p.Flows != nil {
			flows = *p.Flows
		}
		state := orDash(p.State != "", p.State)
		if p.State != "" {
			state.style = bad
		}
		t.rows = append(t.rows, []cell{
			text(term.Clean(p.Tunnel)), text(p.Peer.String()), text(strconv.Itoa(int(p.Port))), orDash(p.Flows != nil, strconv.Itoa(flows)),
			text(bytes(p.Load)),
			{share: p.Share, style: good},
			text(percent(p.Share)), state,
		})
	}
	return t
}

// rateTable has the counters that have grown, and the datagrams that WireGuard refused.
func (r *spreadRenderer) rateTable() *table {
	t := r.table("no events", column{title: "RATE/s", right: true}, column{title: "COUNTER", rank: 1}, column{title: "MEANING"})
	for _, c := range r.spread.Rates {
		t.rows = append(t.rows, []cell{text(count(c.Rate)), text(term.Clean(c.Name)), text(term.Clean(c.Help))})
	}
	if d := r.spread.Refused; d != nil {
		t.rows = append(t.rows, []cell{
			{text: count(d.Received - d.Accepted), style: bad},
			text("refused"),
			text("datagrams that WireGuard did not accept: replays, forged or stale ones (or on their way)"),
		})
	}
	return t
}

const (
	spreadKeys = "q quit  s sort  r reverse  space pause  +/- interval  ? help"
	spreadHelp = "\n" + helpKeys + `

PORT is a source port of messages to a peer, RECENT the bytes that
left from it, halved every 134 ms. FLOWS are the flows that send
now, counted if the device has one peer. Messages keep the listen
port while a peer is paused, or held because it does not answer.
They also keep it while a port is blocked: probes from it are not
answered. "refused" is shown for WireGuard in the kernel.`
)
