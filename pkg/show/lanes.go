// SPDX-License-Identifier: Apache-2.0

package show

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/config"
)

// lanes prints what a device has that wg(8) does not know of.
func (p *printer) lanes(st *config.Status) {
	text := st.Spread.String()
	if st.Spread != config.SpreadOff {
		text += ", ports " + st.SpreadPorts.String()
	}
	p.field("spread", text)
	p.field("lanes", strconv.Itoa(st.Lanes))
	if stats := p.opt.Stats[st.Name]; stats != nil {
		p.stats(stats)
	}
}

// socketDrop is the reason of what the kernel has dropped at a lane's socket.
const socketDrop = "rx_socket"

// stats prints what the daemon has counted.
func (p *printer) stats(s *Stats) {
	for i := range s.Lanes {
		l := &s.Lanes[i]
		text := fmt.Sprintf("%s in %s received, %s in %s sent",
			p.bytes(l.RxBytes), count(l.RxPackets, "packet"), p.bytes(l.TxBytes), count(l.TxPackets, "packet"))
		if n := l.Drops[socketDrop]; n > 0 {
			text += fmt.Sprintf(", %d dropped at its socket", n)
		}
		p.field(fmt.Sprintf("lane %d", i), text)
	}
	if text := crewText(s); text != "" {
		p.field("crew", text)
	}
	if s.Cipher != "" {
		p.field("cipher", s.Cipher)
	}
	p.field("underlay", underlayText(s))
	if s.Way != nil && s.Way.ReceiveCPUs != nil && s.Up {
		p.field("rx cpus", receiveCPUsText(s.Way.ReceiveCPUs))
	}
	p.field("tun", cmp.Or(strings.TrimPrefix(listed(feature{"TSO", s.TUN.TSO}, feature{"USO", s.TUN.USO}, feature{"steered", s.TUN.Steer}), ", "), none))
	if s.Selection != nil && s.Up {
		p.field("selection", selectionText(s.Selection))
	}
	p.field("drops", dropsText(s.AllDrops()))
}

// crewText is "2 workers, sealed 5 of 7 trains offered, opened 0 of 0", or as much of it as there is.
func crewText(s *Stats) string {
	var parts []string
	if s.Workers != nil {
		parts = append(parts, count(uint64(*s.Workers), "worker"))
	}
	if tx, rx := s.crew(); tx.Offered+rx.Offered > 0 {
		parts = append(parts, fmt.Sprintf("sealed %d of %s offered, opened %d of %d", tx.Done, count(tx.Offered, "train"), rx.Done, rx.Offered))
	}
	return strings.Join(parts, ", ")
}

// underlayText is "xdp on eth0, zerocopy, 4 lanes; udp, GSO, GRO, IPv4, IPv6", or the latter alone with the reason.
func underlayText(s *Stats) string {
	if !s.Up {
		return none + ", the interface is down"
	}
	u := s.Underlay
	text := "udp" + listed(feature{"GSO", u.GSO}, feature{"GRO", u.GRO}, feature{"IPv4", u.IPv4}, feature{"IPv6", u.IPv6},
		feature{"filter", u.Filter})
	if w := s.Way; w != nil && w.Way == config.UnderlayXDP {
		text = fmt.Sprintf("xdp on %s, %s, %s; ", w.Device, w.How, count(uint64(w.Lanes), "lane")) + text
	}
	if s.Way != nil && s.Way.Reason != "" {
		text += " (" + s.Way.Reason + ")"
	}
	return text
}

// receiveCPUsText is "0-3 on eth0", or "none" with the reason.
func receiveCPUsText(r *config.ReceiveCPUsReport) string {
	text := none
	if len(r.CPUs) > 0 {
		text = config.FormatCPUs(r.CPUs) + " on " + r.Device
	}
	if r.Reason != "" {
		text += " (" + r.Reason + ")"
	}
	return text
}

// feature is something that may be there.
type feature struct {
	name string
	on   bool
}

// listed is ", GSO, GRO", or "" when there is nothing.
func listed(features ...feature) string {
	var b strings.Builder
	for _, f := range features {
		if f.on {
			b.WriteString(", " + f.name)
		}
	}
	return b.String()
}

func selectionText(s *Selection) string {
	text := "by hash"
	if s.ByPort {
		text = "by source port"
		if s.Wanted > 0 {
			text += fmt.Sprintf(", %d of %s", s.Plans, count(uint64(s.Wanted), "plan"))
		}
	}
	if s.Reason != "" {
		text += " (" + s.Reason + ")"
	}
	return text
}

// dropsText names the most frequent reasons first.
func dropsText(drops map[string]uint64) string {
	if len(drops) == 0 {
		return none
	}
	reasons := slices.SortedFunc(maps.Keys(drops), func(a, b string) int {
		return cmp.Or(cmp.Compare(drops[b], drops[a]), cmp.Compare(a, b))
	})
	texts := make([]string, len(reasons))
	for i, reason := range reasons {
		texts[i] = fmt.Sprintf("%d %s", drops[reason], reason)
	}
	return strings.Join(texts, ", ")
}

// count is "1 packet" or "2 packets".
func count(n uint64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// peerSpreadText is "16 ports, planned", or "off" with the reason.
func peerSpreadText(s config.PeerSpread) string {
	switch {
	case !s.Active && s.Reason == "":
		return off
	case !s.Active:
		return off + " (" + s.Reason + ")"
	}
	text := count(uint64(s.Ports), "port")
	if s.Planned {
		text += ", planned"
	}
	return text
}
