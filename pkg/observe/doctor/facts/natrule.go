// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// NATRule is a rule, with the conditions that this package reads.
type NATRule struct {
	Chain  string // such as "ip nat POSTROUTING"
	Family uint8  // unix.NFPROTO_IPV4 or IPV6; 0: both
	Device string // of the packets that it concerns; empty: any
	// From and To are its source and destination ports; nil: all.
	From, To []spread.Ports
	// Partial is set if it has other conditions.
	Partial bool
	// Unread is set for the unknown rules of a table.
	Unread bool
}

// KeepsPortsOf returns the chain of a rule by which other senders of this host get source ports of a tunnel on the way to its peers, by one of the
// devices. It is empty for none. exempt is set if the tunnel's datagrams are untracked, so that it does no harm. An error means that it is unknown.
func (n *NAT) KeepsPortsOf(t *Tunnel, ports []spread.Ports, devices []string) (chain string, exempt bool, err error) {
	for _, p := range ports {
		for i := range n.KeepsPorts {
			rule := &n.KeepsPorts[i]
			if !rule.concerns(t, p, devices) {
				continue
			}
			exempts, known := n.exempts(t, rule.Family, p, devices)
			switch {
			case exempts:
				chain = cmp.Or(chain, rule.Chain)
			case rule.Unread:
				err = fmt.Errorf("the rules of iptables-legacy are not read: see `iptables-legacy-save -t %s`", rule.Chain)
			case !known:
				err = fmt.Errorf("%s keeps source ports, and a rule with conditions that are not read exempts packets from conntrack", rule.Chain)
			default:
				return rule.Chain, false, nil
			}
		}
	}
	return chain, true, err
}

// concerns reports whether a rule may match UDP datagrams with one of these source ports to a peer of the tunnel, by one of the devices.
func (r *NATRule) concerns(t *Tunnel, from spread.Ports, devices []string) bool {
	isTo := func(p Peer) bool {
		port := p.Endpoint.AddrPort.Port()
		return overlaps(r.To, spread.Ports{First: port, Last: port})
	}
	return overlaps(r.From, from) && (r.Device == "" || slices.Contains(devices, r.Device)) && (len(t.Peers) == 0 || slices.ContainsFunc(t.Peers, isTo))
}

// overlaps reports whether a list, nil for all ports, has one of these.
func overlaps(list []spread.Ports, ports spread.Ports) bool {
	return list == nil || slices.ContainsFunc(list, func(p spread.Ports) bool { return p.First <= ports.Last && ports.First <= p.Last })
}

// exempts reports whether rules exempt all datagrams of a family (0: of both) with these source ports from conntrack, and whether that is known.
func (n *NAT) exempts(t *Tunnel, family uint8, ports spread.Ports, devices []string) (exempts, known bool) {
	known = true
	var untracked []spread.Ports
	for i := range n.Untracked {
		r := &n.Untracked[i]
		switch {
		case r.Family != 0 && family != 0 && r.Family != family || !r.concerns(t, ports, devices):
		case r.Partial || r.Unread || r.Device != "" || r.To != nil || r.Family != 0 && family == 0:
			known = false
		case r.From == nil:
			return true, true
		default:
			untracked = append(untracked, r.From...)
		}
	}
	slices.SortFunc(untracked, func(a, b spread.Ports) int { return int(a.First) - int(b.First) })
	next := int(ports.First)
	for _, p := range untracked {
		if int(p.First) <= next {
			next = max(next, int(p.Last)+1)
		}
	}
	exempts = next > int(ports.Last)
	return exempts, exempts || known
}

// ruleReader reads the conditions of one rule.
type ruleReader struct {
	NATRule
	set   func(name string) ([]spread.Ports, error) // reads a set of ports
	value string                                    // in the register
	other bool                                      // it concerns no UDP
}

// What may be in the register.
const (
	valueProtocol = "protocol"
	valueFamily   = "family"
	valueDevice   = "oifname"
	valueIndex    = "oif"
	valueFrom     = "source port"
	valueTo       = "destination port"
)

// read reads an expression.
func (r *ruleReader) read(e expr.Any) error {
	switch e := e.(type) {
	case *expr.Meta:
		r.value = map[expr.MetaKey]string{
			expr.MetaKeyL4PROTO: valueProtocol, expr.MetaKeyNFPROTO: valueFamily, expr.MetaKeyOIFNAME: valueDevice, expr.MetaKeyOIF: valueIndex,
		}[e.Key]
	case *expr.Payload:
		r.value = payloads[expr.Payload{Base: e.Base, Offset: e.Offset, Len: e.Len}]
		if r.value == valueProtocol && r.Family != unix.NFPROTO_IPV4 {
			r.value = "" // part of an address
		}
	case *expr.Cmp:
		r.compare(e.Op, e.Data)
	case *expr.Range:
		if e.Op == expr.CmpOpEq && len(e.FromData) == 2 && len(e.ToData) == 2 {
			r.limit([]spread.Ports{{First: binary.BigEndian.Uint16(e.FromData), Last: binary.BigEndian.Uint16(e.ToData)}})
		} else {
			r.Partial = true
		}
	case *expr.Lookup:
		if e.Invert || r.value != valueFrom && r.value != valueTo {
			r.Partial = true
			return nil
		}
		ports, err := r.set(e.SetName)
		r.limit(ports)
		return err
	case *expr.Match:
		r.match(e)
	case *expr.Counter, *expr.Log, *expr.Verdict, *expr.Immediate, *expr.Masq, *expr.NAT, *expr.Target, *expr.Notrack:
	default:
		r.value, r.Partial = "", true
	}
	return nil
}

// payloads are the header fields that are understood.
var payloads = map[expr.Payload]string{
	{Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 2}: valueFrom,
	{Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}: valueTo,
	{Base: expr.PayloadBaseNetworkHeader, Offset: 9, Len: 1}:   valueProtocol, // of IPv4
}

// compare reads a comparison with the value in the register.
func (r *ruleReader) compare(op expr.CmpOp, data []byte) {
	isPort := len(data) == 2 && (r.value == valueFrom || r.value == valueTo)
	switch name := strings.TrimRight(string(data), "\x00"); {
	case isPort && (op == expr.CmpOpEq || op == expr.CmpOpGte || op == expr.CmpOpLte):
		port := binary.BigEndian.Uint16(data)
		p := spread.Ports{First: port, Last: port}
		switch op {
		case expr.CmpOpLte:
			p.First = 0
		case expr.CmpOpGte:
			p.Last = math.MaxUint16
		}
		r.limit([]spread.Ports{p})
	case op != expr.CmpOpEq:
		r.Partial = true
	case r.value == valueProtocol && len(data) == 1:
		r.other = r.other || data[0] != unix.IPPROTO_UDP
	case r.value == valueFamily && len(data) == 1:
		r.Family = data[0]
	case r.value == valueDevice && len(name) < len(data): // else a prefix of names
		r.Device = name
	case r.value == valueIndex && len(data) == 4:
		link, err := net.InterfaceByIndex(int(binary.NativeEndian.Uint32(data)))
		if err == nil {
			r.Device = link.Name
		}
		r.Partial = r.Partial || err != nil
	default:
		r.Partial = true
	}
}

// match reads a condition of iptables.
func (r *ruleReader) match(e *expr.Match) {
	switch info := e.Info.(type) {
	case *xt.Comment:
	case *xt.Udp:
		r.Partial = r.Partial || info.InvFlags != 0
		if info.InvFlags != 0 {
			return
		}
		for value, p := range map[string][2]uint16{valueFrom: info.SrcPorts, valueTo: info.DstPorts} {
			if p != [2]uint16{0, math.MaxUint16} {
				r.value = value
				r.limit([]spread.Ports{{First: p[0], Last: p[1]}})
			}
		}
	default:
		r.Partial = true
	}
}

// limit limits the ports in the register to those of a list.
func (r *ruleReader) limit(to []spread.Ports) {
	list := &r.From
	switch r.value {
	case valueFrom:
	case valueTo:
		list = &r.To
	default:
		r.Partial = true
		return
	}
	if *list == nil {
		*list = to
		return
	}
	common := []spread.Ports{}
	for _, a := range *list {
		for _, b := range to {
			if p := (spread.Ports{First: max(a.First, b.First), Last: min(a.Last, b.Last)}); p.First <= p.Last {
				common = append(common, p)
			}
		}
	}
	*list = common
}

// portSet reads a set of ports. In one with ranges the element after a range ends it.
func portSet(c *nftables.Conn, table *nftables.Table, name string) (list []spread.Ports, err error) {
	set, err := c.GetSetByName(table, name)
	if err != nil {
		return nil, err
	}
	elements, err := c.GetSetElements(set)
	if err != nil {
		return nil, err
	}
	elements = slices.DeleteFunc(elements, func(e nftables.SetElement) bool { return len(e.Key) != 2 })
	port := func(e nftables.SetElement) int { return int(binary.BigEndian.Uint16(e.Key)) }
	slices.SortFunc(elements, func(a, b nftables.SetElement) int { return port(a) - port(b) })
	list = []spread.Ports{}
	for n, e := range elements {
		last := port(e)
		switch {
		case e.IntervalEnd:
			continue
		case set.Interval && n+1 < len(elements):
			last = port(elements[n+1]) - 1
		case set.Interval:
			last = math.MaxUint16
		}
		list = append(list, spread.Ports{First: uint16(port(e)), Last: uint16(last)})
	}
	return list, nil
}
