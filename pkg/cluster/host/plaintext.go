// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// The agent's nftables objects, in the family inet. Other programs' tables are not touched.
const (
	FilterTable   = "ropewalk"
	filterChain   = "prerouting"
	nodesChain    = "nodes"
	filterCounter = "plaintext"
)

// SetPlaintextFilter installs or removes a filter that drops unencrypted packets with the source address of another node's pod. The
// routes into the tunnel decide which addresses these are: a packet whose answer would enter the tunnel must have come out of it.
//
// It runs before destination NAT and knows no connections. Packets that conntrack does not track, or calls invalid, and answers to
// connections through a Service are not exempt. Packets to an address of the node itself are, because the mesh does not encrypt them. With a
// NodeRouting it does, and a second chain drops unencrypted ones, from pods and from nodes (node_filter.go). Multicast is exempt: nodes solicit
// each other's link-layer addresses with it.
func (System) SetPlaintextFilter(tunnel string, wanted bool, nodes *NodeRouting) (changes int, err error) {
	c, err := nftables.New()
	if err != nil {
		return 0, fmt.Errorf("opening nftables: %w", err)
	}
	exists, err := hasTable(c)
	if err != nil || !exists && !wanted || exists && wanted && isFilterInstalled(c, tunnel, nodes) {
		return 0, err
	}
	table := &nftables.Table{Name: FilterTable, Family: nftables.TableFamilyINet}
	c.AddTable(table) // so that there is one to delete: adding an existing one succeeds
	c.DelTable(table)
	if wanted {
		addPlaintextFilter(c, tunnel, nodes)
	}
	if err := c.Flush(); err != nil {
		return 0, fmt.Errorf("changing the nftables table %s: %w", FilterTable, err)
	}
	return 1, nil
}

func addPlaintextFilter(c *nftables.Conn, tunnel string, nodes *NodeRouting) {
	table := c.AddTable(&nftables.Table{Name: FilterTable, Family: nftables.TableFamilyINet})
	c.AddObj(&nftables.CounterObj{Table: table, Name: filterCounter})
	rules := map[string][][]expr.Any{filterChain: {filterExprs(tunnel)}, nodesChain: nodes.filter(tunnel)}
	for name, all := range rules {
		if len(all) == 0 {
			continue
		}
		chain := c.AddChain(&nftables.Chain{
			Name: name, Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityMangle,
		})
		id := filterID(all)
		for _, exprs := range all {
			c.AddRule(&nftables.Rule{Table: table, Chain: chain, UserData: id, Exprs: exprs})
		}
	}
}

// filterExprs returns the filter's rule.
func filterExprs(tunnel string) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: deviceName(tunnel)},
		&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true}, // first, since the tunnel's own datagrams end here
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_MULTICAST)},
		&expr.Fib{Register: 1, FlagSADDR: true, ResultOIFNAME: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: deviceName(tunnel)},
		&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: filterCounter},
		&expr.Verdict{Kind: expr.VerdictDrop},
	}
}

// filterID identifies a chain's rules in their user data, so that other rules are replaced, such as
// another agent version's. Expressions read from the kernel cannot be compared: not all are decoded
// as they were encoded.
func filterID(rules [][]expr.Any) []byte {
	h := sha256.New()
	for _, exprs := range rules {
		for _, e := range exprs {
			text, err := expr.Marshal(unix.NFPROTO_INET, e)
			if err != nil { // the rule itself cannot be installed then
				return nil
			}
			h.Write(text)
		}
	}
	return h.Sum(nil)
}

// hasTable reports whether the agent's table exists.
func hasTable(c *nftables.Conn) (bool, error) {
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return false, fmt.Errorf("listing nftables tables: %w", err)
	}
	return slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == FilterTable }), nil
}

// isFilterInstalled reports whether the table holds the filter for a tunnel. If it cannot be read, it is made anew.
func isFilterInstalled(c *nftables.Conn, tunnel string, nodes *NodeRouting) bool {
	return hasRules(c, filterChain, [][]expr.Any{filterExprs(tunnel)}) && hasRules(c, nodesChain, nodes.filter(tunnel))
}

// hasRules reports whether a chain of the table has exactly the wanted rules. Without any, it reports whether there is no such chain.
func hasRules(c *nftables.Conn, name string, want [][]expr.Any) bool {
	table := &nftables.Table{Name: FilterTable, Family: nftables.TableFamilyINet}
	chain, err := c.ListChain(table, name)
	if err != nil {
		return len(want) == 0
	}
	rules, err := c.GetRules(table, chain)
	id := filterID(want)
	different := func(r *nftables.Rule) bool { return !bytes.Equal(r.UserData, id) }
	return err == nil && len(rules) == len(want) && !slices.ContainsFunc(rules, different)
}

// PlaintextDropped returns the number of packets that the filter has dropped since it was installed; 0 without a filter.
func PlaintextDropped() uint64 {
	c, err := nftables.New()
	if err != nil {
		return 0
	}
	table := &nftables.Table{Name: FilterTable, Family: nftables.TableFamilyINet}
	obj, err := c.GetObject(&nftables.CounterObj{Table: table, Name: filterCounter})
	if err != nil {
		return 0
	}
	counter, ok := obj.(*nftables.CounterObj)
	if !ok {
		return 0
	}
	return counter.Packets
}
