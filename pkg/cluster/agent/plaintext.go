// SPDX-License-Identifier: Apache-2.0

package agent

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
	filterTable   = "ropewalk"
	filterChain   = "prerouting"
	filterCounter = "plaintext"
)

// setPlaintextFilter installs or removes a filter that drops unencrypted packets with the source address of another node's pod. The
// routes into the tunnel decide which addresses these are: a packet whose answer would enter the tunnel must have come out of it.
//
// It runs before destination NAT and knows no connections. Packets that conntrack does not track, or calls invalid, and answers to
// connections through a Service are not exempt. Packets to an address of the node itself are, because the mesh does not encrypt them.
func setPlaintextFilter(tunnel string, wanted bool) (changes int, err error) {
	c, err := nftables.New()
	if err != nil {
		return 0, fmt.Errorf("opening nftables: %w", err)
	}
	exists, err := hasTable(c)
	if err != nil || !exists && !wanted || exists && wanted && isFilterInstalled(c, tunnel) {
		return 0, err
	}
	table := &nftables.Table{Name: filterTable, Family: nftables.TableFamilyINet}
	c.AddTable(table) // so that there is one to delete: adding an existing one succeeds
	c.DelTable(table)
	if wanted {
		addPlaintextFilter(c, tunnel)
	}
	if err := c.Flush(); err != nil {
		return 0, fmt.Errorf("changing the nftables table %s: %w", filterTable, err)
	}
	return 1, nil
}

func addPlaintextFilter(c *nftables.Conn, tunnel string) {
	table := c.AddTable(&nftables.Table{Name: filterTable, Family: nftables.TableFamilyINet})
	c.AddObj(&nftables.CounterObj{Table: table, Name: filterCounter})
	chain := c.AddChain(&nftables.Chain{
		Name: filterChain, Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityMangle,
	})
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, UserData: filterID(tunnel), Exprs: filterExprs(tunnel)})
}

// filterExprs returns the filter's rule.
func filterExprs(tunnel string) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: deviceName(tunnel)},
		&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true}, // first, since the tunnel's own datagrams end here
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
		&expr.Fib{Register: 1, FlagSADDR: true, ResultOIFNAME: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: deviceName(tunnel)},
		&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: filterCounter},
		&expr.Verdict{Kind: expr.VerdictDrop},
	}
}

// filterID identifies the rule in its user data, so that another version of the agent replaces it. Expressions read from the kernel cannot
// be compared: not all are decoded as they were encoded.
func filterID(tunnel string) []byte {
	h := sha256.New()
	for _, e := range filterExprs(tunnel) {
		text, err := expr.Marshal(unix.NFPROTO_INET, e)
		if err != nil { // the rule itself cannot be installed then
			return nil
		}
		h.Write(text)
	}
	return h.Sum(nil)
}

// deviceName returns the name as nftables compares it, in IFNAMSIZ bytes.
func deviceName(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}

// hasTable reports whether the agent's table exists.
func hasTable(c *nftables.Conn) (bool, error) {
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return false, fmt.Errorf("listing nftables tables: %w", err)
	}
	return slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == filterTable }), nil
}

// isFilterInstalled reports whether the table holds the filter for a tunnel. If it cannot be read, it is made anew.
func isFilterInstalled(c *nftables.Conn, tunnel string) bool {
	table := &nftables.Table{Name: filterTable, Family: nftables.TableFamilyINet}
	chain, err := c.ListChain(table, filterChain)
	if err != nil {
		return false
	}
	rules, err := c.GetRules(table, chain)
	return err == nil && len(rules) == 1 && bytes.Equal(rules[0].UserData, filterID(tunnel))
}

// plaintextDropped returns the number of packets that the filter has dropped since it was installed; 0 without a filter.
func plaintextDropped() uint64 {
	c, err := nftables.New()
	if err != nil {
		return 0
	}
	table := &nftables.Table{Name: filterTable, Family: nftables.TableFamilyINet}
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
