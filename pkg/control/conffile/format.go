// SPDX-License-Identifier: Apache-2.0

package conffile

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/control/show"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// ShowConf writes a device's configuration byte for byte as `wg showconf` does. The text holds the keys in the clear.
// zoneName returns the name of an interface; it may be nil, for numbers.
func ShowConf(w io.Writer, st config.Status, zoneName func(uint32) string) error {
	return FromStatus(st, zoneName).Format(w)
}

// FromStatus returns the file that describes the configuration of a device. See ShowConf for zoneName.
func FromStatus(st config.Status, zoneName func(uint32) string) *File {
	f := &File{Interface: Interface{
		PrivateKey: nilIfZero(st.PrivateKey),
		ListenPort: nilIfZero(st.ListenPort),
		FwMark:     nilIfZero(st.FwMark),
	}}
	for i := range st.Peers {
		f.Peers = append(f.Peers, fromPeer(&st.Peers[i], zoneName))
	}
	return f
}

func fromPeer(st *config.PeerStatus, zoneName func(uint32) string) Peer {
	p := Peer{
		Name:         st.Name,
		PublicKey:    st.PublicKey,
		PresharedKey: nilIfZero(st.PresharedKey),
		Keepalive:    nilIfZero(st.Keepalive),
	}
	if st.PostQuantum.Own {
		p.PostQuantum = &st.PostQuantum.Policy
	}
	if st.EndpointName != "" {
		p.Endpoint = st.EndpointName
	} else if st.Endpoint.AddrPort.IsValid() {
		p.Endpoint = show.Endpoint(st.Endpoint, zoneName)
	}
	for _, prefix := range st.AllowedIPs {
		p.AllowedIPs = append(p.AllowedIPs, config.AllowedIP{Prefix: prefix})
	}
	return p
}

func nilIfZero[T comparable](v T) *T {
	if v == *new(T) {
		return nil
	}
	return &v
}

// Format writes the file: wg-quick's keys in the order of `wg-quick save`, then ropewalk's keys, then the rest as `wg showconf`
// does. Parse reads the same File back. The text holds the keys in the clear.
func (f *File) Format(w io.Writer) error {
	b := bufio.NewWriter(w)
	b.WriteString("[Interface]\n")
	formatQuick(b, &f.Interface)
	formatRopewalk(b, &f.Interface)
	if p := f.Interface.ListenPort; p != nil {
		fmt.Fprintf(b, "ListenPort = %d\n", *p)
	}
	if m := f.Interface.FwMark; m != nil {
		fmt.Fprintf(b, "FwMark = 0x%x\n", *m)
	}
	if k := f.Interface.PrivateKey; k != nil {
		fmt.Fprintf(b, "PrivateKey = %s\n", k.Base64())
	}
	for i := range f.Peers {
		b.WriteByte('\n')
		formatPeer(b, &f.Peers[i])
	}
	if len(f.Peers) == 0 {
		b.WriteByte('\n')
	}
	return b.Flush()
}

func formatQuick(b *bufio.Writer, i *Interface) {
	for _, address := range i.Address {
		fmt.Fprintf(b, "Address = %s\n", show.Prefix(address))
	}
	for _, server := range i.DNS {
		fmt.Fprintf(b, "DNS = %s\n", server)
	}
	formatTexts(b, "DNS", i.DNSSearch)
	if i.MTU != 0 {
		fmt.Fprintf(b, "MTU = %d\n", i.MTU)
	}
	if i.Table != "" {
		fmt.Fprintf(b, "Table = %s\n", i.Table)
	}
	if i.SaveConfig {
		b.WriteString("SaveConfig = true\n")
	}
	formatTexts(b, "PreUp", i.PreUp)
	formatTexts(b, "PostUp", i.PostUp)
	formatTexts(b, "PreDown", i.PreDown)
	formatTexts(b, "PostDown", i.PostDown)
}

func formatTexts(b *bufio.Writer, key string, values []string) {
	for _, value := range values {
		fmt.Fprintf(b, "%s = %s\n", key, value)
	}
}

func formatPeer(b *bufio.Writer, p *Peer) {
	b.WriteString("[Peer]\n")
	if p.Name != "" {
		fmt.Fprintf(b, "# Name = %s\n", p.Name)
	}
	fmt.Fprintf(b, "PublicKey = %s\n", p.PublicKey.Base64())
	if p.PresharedKey != nil {
		fmt.Fprintf(b, "PresharedKey = %s\n", p.PresharedKey.Base64())
	}
	if len(p.AllowedIPs) > 0 {
		fmt.Fprintf(b, "AllowedIPs = %s\n", formatAllowedIPs(p))
	}
	if p.Endpoint != "" {
		fmt.Fprintf(b, "Endpoint = %s\n", p.Endpoint)
	}
	if p.Keepalive != nil {
		fmt.Fprintf(b, "PersistentKeepalive = %d\n", *p.Keepalive)
	}
	if p.PostQuantum != nil {
		fmt.Fprintf(b, "PostQuantum = %v\n", *p.PostQuantum)
	}
}

func formatAllowedIPs(p *Peer) string {
	texts := make([]string, len(p.AllowedIPs))
	for i, a := range p.AllowedIPs {
		switch {
		case a.Remove:
			texts[i] = "-"
		case p.ModifyAllowedIPs:
			texts[i] = "+"
		}
		texts[i] += show.Prefix(a.Prefix)
	}
	return strings.Join(texts, ", ")
}
