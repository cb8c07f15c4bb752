// SPDX-License-Identifier: Apache-2.0

package show

import (
	"bufio"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// Selector is one of the script-friendly forms of `wg show`.
type Selector string

// The selectors, in the order of wg(8)'s usage text.
const (
	PublicKey           Selector = "public-key"
	PrivateKey          Selector = "private-key"
	ListenPort          Selector = "listen-port"
	FwMark              Selector = "fwmark"
	Peers               Selector = "peers"
	PresharedKeys       Selector = "preshared-keys"
	Endpoints           Selector = "endpoints"
	AllowedIPs          Selector = "allowed-ips"
	LatestHandshakes    Selector = "latest-handshakes"
	Transfer            Selector = "transfer"
	PersistentKeepalive Selector = "persistent-keepalive"
	Dump                Selector = "dump"
)

// Selectors returns all selectors in the order of wg(8)'s usage text.
func Selectors() []Selector {
	return []Selector{
		PublicKey, PrivateKey, ListenPort, FwMark, Peers, PresharedKeys, Endpoints, AllowedIPs, LatestHandshakes,
		Transfer, PersistentKeepalive, Dump,
	}
}

// ParseSelector returns the selector of that name; ok is false when there is none.
func ParseSelector(name string) (sel Selector, ok bool) {
	return Selector(name), slices.Contains(Selectors(), Selector(name))
}

// Select prints the fields of the selector for one device: tab-separated, one line for the device or for each peer in
// the order given. withName prints the device's name as `wg show all` does: before each line, but only once for Endpoints. Keys are
// not hidden.
func Select(w io.Writer, st config.Status, sel Selector, withName bool, opt Options) error {
	r := rows{b: bufio.NewWriter(w), zoneName: opt.ZoneName}
	if withName {
		r.prefix = st.Name + "\t"
	}
	if sel == Endpoints { // wg(8) prints the name once, even without peers
		r.b.WriteString(r.prefix)
		r.prefix = ""
	}
	if fields := deviceFields(sel, &st); fields != nil {
		r.row(fields...)
	}
	for i := range st.Peers {
		if fields := r.peerFields(sel, &st.Peers[i]); fields != nil {
			r.row(fields...)
		}
	}
	return r.b.Flush()
}

// rows prints lines of tab-separated fields.
type rows struct {
	b        *bufio.Writer
	prefix   string
	zoneName func(uint32) string
}

func (r *rows) row(fields ...string) {
	r.b.WriteString(r.prefix)
	r.b.WriteString(strings.Join(fields, "\t"))
	r.b.WriteByte('\n')
}

// deviceFields returns the fields of the device's own line, nil when the selector is about peers.
func deviceFields(sel Selector, st *config.Status) []string {
	switch sel {
	case PublicKey:
		return []string{keyText(st.PublicKey)}
	case PrivateKey:
		return []string{keyText(st.PrivateKey)}
	case ListenPort:
		return []string{strconv.Itoa(int(st.ListenPort))}
	case FwMark:
		return []string{fwMarkText(st.FwMark)}
	case Dump:
		return []string{
			keyText(st.PrivateKey), keyText(st.PublicKey), strconv.Itoa(int(st.ListenPort)), fwMarkText(st.FwMark),
		}
	}
	return nil
}

// peerFields returns the fields of a peer's line, nil when the selector is about the device.
func (r *rows) peerFields(sel Selector, p *config.PeerStatus) []string {
	key := p.PublicKey.Base64()
	switch sel {
	case Peers:
		return []string{key}
	case PresharedKeys:
		return []string{key, keyText(p.PresharedKey)}
	case Endpoints:
		return []string{key, Endpoint(p.Endpoint, r.zoneName)}
	case AllowedIPs:
		return []string{key, allowedIPsText(p.AllowedIPs, " ")}
	case LatestHandshakes:
		return []string{key, handshakeText(p)}
	case Transfer:
		return []string{key, bytesText(p.RxBytes), bytesText(p.TxBytes)}
	case PersistentKeepalive:
		return []string{key, keepaliveText(p.Keepalive)}
	case Dump:
		return []string{
			key, keyText(p.PresharedKey), Endpoint(p.Endpoint, r.zoneName), allowedIPsText(p.AllowedIPs, ","),
			handshakeText(p), bytesText(p.RxBytes), bytesText(p.TxBytes), keepaliveText(p.Keepalive),
		}
	}
	return nil
}

func keyText[K interface {
	noise.Key
	IsZero() bool
	Base64() string
}](key K) string {
	if key.IsZero() {
		return none
	}
	return key.Base64()
}

func fwMarkText(mark uint32) string {
	if mark == 0 {
		return off
	}
	return "0x" + strconv.FormatUint(uint64(mark), 16)
}

func keepaliveText(seconds uint16) string {
	if seconds == 0 {
		return off
	}
	return strconv.Itoa(int(seconds))
}

func bytesText(n uint64) string {
	return strconv.FormatUint(n, 10)
}

func handshakeText(p *config.PeerStatus) string {
	if p.LastHandshake.IsZero() {
		return "0"
	}
	return strconv.FormatInt(p.LastHandshake.Unix(), 10)
}

func allowedIPsText(prefixes []netip.Prefix, separator string) string {
	if len(prefixes) == 0 {
		return none
	}
	texts := make([]string, len(prefixes))
	for i, prefix := range prefixes {
		texts[i] = Prefix(prefix)
	}
	return strings.Join(texts, separator)
}
