// SPDX-License-Identifier: Apache-2.0

package show

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// lanes prints the fields of a device that wg(8) does not have.
func (p *printer) lanes(st *config.Status) {
	text := st.Spread.String()
	if st.Spread != config.SpreadOff {
		text += ", ports " + st.SpreadPorts.String()
		if st.Spray != config.SprayOff {
			text += ", spray " + st.Spray.String()
		}
	}
	p.report("spread", text)
	p.field("lanes", strconv.Itoa(st.Lanes))
	if stats := p.opt.Stats[st.Name]; stats != nil {
		p.stats(stats)
	}
}

// socketDrop is the drop reason of datagrams that the kernel dropped at a lane's socket.
const socketDrop = "rx_socket"

// stats prints the daemon's counters.
func (p *printer) stats(s *Stats) {
	for i := range s.Lanes {
		l := &s.Lanes[i]
		text := fmt.Sprintf("%s in %s received, %s in %s sent",
			p.bytes(l.RxBytes), count(l.RxPackets, "packet"), p.bytes(l.TxBytes), count(l.TxPackets, "packet"))
		if n := l.Drops[socketDrop]; n > 0 {
			text += fmt.Sprintf(", %d dropped at its socket", n)
		}
		if sprayed := l.TxSprayed + l.RxSprayed; sprayed > 0 {
			text += fmt.Sprintf(", %d sprayed", sprayed)
		}
		if marks := l.TxMarks + l.RxMarks; marks > 0 {
			text += fmt.Sprintf(", %d marked", marks)
		}
		p.field(fmt.Sprintf("lane %d", i), text)
	}
	if text := workersText(s); text != "" {
		p.field("workers", text)
	}
	if s.Cipher != "" {
		p.report("cipher", s.Cipher)
	}
	p.report("underlay", underlayText(s))
	p.field("tun", cmp.Or(strings.TrimPrefix(joinFeatures(feature{"TSO", s.TUN.TSO}, feature{"USO", s.TUN.USO}, feature{"steered", s.TUN.Steer}), ", "), none))
	if s.Selection != nil && s.Up {
		p.report("selection", selectionText(s.Selection))
	}
	p.report("drops", dropsText(s.AllDrops()))
}

// workersText returns text such as "2, sealed 5 of 7 jobs, opened 0 of 0", without the parts that are unknown.
func workersText(s *Stats) string {
	var parts []string
	if s.Workers != nil {
		parts = append(parts, strconv.Itoa(*s.Workers))
	}
	if tx, rx := s.workers(); tx.Submitted+rx.Submitted > 0 {
		parts = append(parts, fmt.Sprintf("sealed %d of %s, opened %d of %d", tx.Done, count(tx.Submitted, "job"), rx.Done, rx.Submitted))
	}
	return strings.Join(parts, ", ")
}

// underlayText returns text such as "xdp on eth0, zerocopy, 4 lanes; udp, GSO, GRO, IPv4, IPv6". Without XDP it returns the part from
// "udp", with the reason.
func underlayText(s *Stats) string {
	if !s.Up {
		return none + ", the interface is down"
	}
	u := s.Underlay
	text := "udp" + joinFeatures(feature{gsoText(&u), u.GSO}, feature{"GRO", u.GRO}, feature{"IPv4", u.IPv4}, feature{"IPv6", u.IPv6},
		feature{"filter", u.Filter}, feature{"Don't Fragment", u.DontFragment})
	if w := s.Path; w != nil && w.Path == config.UnderlayXDP {
		text = fmt.Sprintf("xdp on %s, %s, %s; ", w.Device, w.How, count(uint64(w.Lanes), "lane")) + text
	}
	if s.Path != nil && s.Path.Reason != "" {
		text += " (" + s.Path.Reason + ")"
	}
	return text
}

// gsoText returns text such as "GSO (not to 2 destinations)".
func gsoText(u *UnderlayFeatures) string {
	n := u.DestinationsWithoutGSO + u.DestinationsLosingTrains
	if n == 0 {
		return "GSO"
	}
	return fmt.Sprintf("GSO (not to %s)", count(uint64(n), "destination"))
}

// feature is an offload, or another feature, that may be available.
type feature struct {
	name string
	on   bool
}

// joinFeatures returns the available features, each after a comma, such as ", GSO, GRO".
func joinFeatures(features ...feature) string {
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

// dropsText lists the most frequent reasons first.
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

// count returns text such as "1 packet" or "2 packets".
func count(n uint64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// peerSpreadText returns text such as "16 ports, planned, 2 blocked on the path", or "off" with the reason.
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
	if s.Sprays > 0 {
		text += fmt.Sprintf(", a large flow over %d", s.Sprays)
	}
	if len(s.Blocked) > 0 {
		text += fmt.Sprintf(", %d blocked on the path", len(s.Blocked))
	}
	return text
}
