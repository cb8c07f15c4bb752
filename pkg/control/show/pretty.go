// SPDX-License-Identifier: Apache-2.0

package show

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// Pretty prints devices in the human-readable form of `wg show`, with an empty line between two.
func Pretty(w io.Writer, devices []config.Status, opt Options) error {
	b := bufio.NewWriter(w)
	for i := range devices {
		if i > 0 {
			b.WriteByte('\n')
		}
		p := printer{Writer: b, opt: opt}
		p.device(&devices[i])
	}
	return b.Flush()
}

// Colours of wg(8).
const (
	reset  = "\x1b[0m"
	bold   = "\x1b[1m"
	red    = "\x1b[31m"
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
	cyan   = "\x1b[36m"
)

// printer leaves errors to the Writer, which keeps the first for Flush.
type printer struct {
	*bufio.Writer
	opt Options
}

// paint returns s in colours.
func (p *printer) paint(s string, colors ...string) string {
	if !p.opt.Color {
		return s
	}
	return strings.Join(colors, "") + s + reset
}

// heading prints the line that begins a device or a peer.
func (p *printer) heading(label, value, color string) {
	fmt.Fprintf(p, "%s: %s\n", p.paint(label, color, bold), p.paint(value, color))
}

// field prints one indented line.
func (p *printer) field(label, value string) {
	fmt.Fprintf(p, "  %s: %s\n", p.paint(label, bold), value)
}

// report prints one indented line with text of the daemon, which may be another program. Text with
// characters that cannot be printed is quoted as in Go.
func (p *printer) report(label, text string) {
	if strings.ContainsFunc(text, func(r rune) bool { return !strconv.IsPrint(r) }) {
		text = strconv.Quote(text)
	}
	p.field(label, text)
}

func (p *printer) secret(label, value string) {
	if !p.opt.ShowKeys {
		value = hidden
	}
	p.field(label, value)
}

func (p *printer) device(st *config.Status) {
	if p.opt.Color {
		p.WriteString(reset)
	}
	p.heading("interface", st.Name, green)
	if !st.PublicKey.IsZero() {
		p.field("public key", st.PublicKey.Base64())
	}
	if !st.PrivateKey.IsZero() {
		p.secret("private key", st.PrivateKey.Base64())
	}
	if st.ListenPort != 0 {
		p.field("listening port", fmt.Sprint(st.ListenPort))
	}
	if st.FwMark != 0 {
		p.field("fwmark", fwMarkText(st.FwMark))
	}
	if ns := p.opt.NetNS[st.Name]; ns != "" {
		p.report("network namespace", ns)
	}
	showLanes := p.opt.Lanes && st.Lanes != 0
	if showLanes {
		p.lanes(st)
	}
	for _, peer := range byHandshake(st.Peers) {
		p.peer(&peer)
		if text := peer.Handshake.String(); text != "" {
			p.report("handshake", text)
		}
		if text := peer.PostQuantum.String(); text != "" {
			p.report("post-quantum", text)
		}
		if showLanes {
			p.report("spread", peerSpreadText(peer.Spread))
			if text := peer.PathMTU.String(); text != "" {
				p.report("path mtu", text)
			}
		}
	}
}

// byHandshake returns the peers in the order of wg(8): latest handshake first, no handshake last, otherwise as given.
func byHandshake(peers []config.PeerStatus) []config.PeerStatus {
	peers = slices.Clone(peers)
	slices.SortStableFunc(peers, func(a, b config.PeerStatus) int {
		return cmp.Or(cmp.Compare(unix(b.LastHandshake), unix(a.LastHandshake)),
			cmp.Compare(b.LastHandshake.Nanosecond(), a.LastHandshake.Nanosecond()))
	})
	return peers
}

// unix returns the Unix time in seconds, 0 for the zero time.
func unix(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Unix()
}

func (p *printer) peer(peer *config.PeerStatus) {
	p.WriteByte('\n')
	p.heading("peer", peer.PublicKey.Base64(), yellow)
	if peer.Name != "" {
		p.report("name", peer.Name)
	}
	if !peer.PresharedKey.IsZero() {
		p.secret("preshared key", peer.PresharedKey.Base64())
	}
	if peer.Endpoint.AddrPort.IsValid() {
		p.field("endpoint", Endpoint(peer.Endpoint, p.opt.ZoneName))
	}
	if p.opt.Lanes && peer.EndpointName != "" {
		p.report("endpoint name", peer.EndpointName)
	}
	p.field("allowed ips", p.allowedIPs(peer.AllowedIPs))
	if sec := unix(peer.LastHandshake); sec != 0 {
		p.field("latest handshake", p.ago(sec))
	}
	if peer.RxBytes != 0 || peer.TxBytes != 0 {
		p.field("transfer", p.bytes(peer.RxBytes)+" received, "+p.bytes(peer.TxBytes)+" sent")
	}
	if peer.Keepalive != 0 {
		p.field("persistent keepalive", "every "+p.duration(uint64(peer.Keepalive)))
	}
}

func (p *printer) allowedIPs(prefixes []netip.Prefix) string {
	if len(prefixes) == 0 {
		return none
	}
	texts := make([]string, len(prefixes))
	for i, prefix := range prefixes {
		texts[i] = fmt.Sprint(Address(prefix.Addr()), p.paint("/", cyan), prefix.Bits())
	}
	return strings.Join(texts, ", ")
}

func (p *printer) ago(sec int64) string {
	now := p.opt.Now.Unix()
	switch {
	case now == sec:
		return "Now"
	case now < sec:
		return "(" + p.paint("System clock wound backward; connection problems may ensue.", red) + ")"
	}
	return p.duration(uint64(now-sec)) + " ago"
}

// duration prints every unit that is not zero, the largest first. A year has 365 days.
func (p *printer) duration(seconds uint64) string {
	units := []struct {
		name    string
		seconds uint64
	}{{"year", 365 * 24 * 3600}, {"day", 24 * 3600}, {"hour", 3600}, {"minute", 60}, {"second", 1}}
	var parts []string
	for _, unit := range units {
		n := seconds / unit.seconds
		seconds %= unit.seconds
		if n == 0 {
			continue
		}
		if n > 1 {
			unit.name += "s"
		}
		parts = append(parts, fmt.Sprintf("%d %s", n, p.paint(unit.name, cyan)))
	}
	return strings.Join(parts, ", ")
}

// bytes prints a size in binary units up to TiB.
func (p *printer) bytes(n uint64) string {
	if n < 1024 {
		return fmt.Sprintf("%d %s", n, p.paint("B", cyan))
	}
	units := []string{"KiB", "MiB", "GiB", "TiB"}
	i := 0
	for i < len(units)-1 && n>>(10*(i+2)) > 0 {
		i++
	}
	return fmt.Sprintf("%.2f %s", float64(n)/math.Exp2(float64(10*(i+1))), p.paint(units[i], cyan))
}
