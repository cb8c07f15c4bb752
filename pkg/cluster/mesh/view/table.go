// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
)

// Style selects the form of text output.
type Style struct {
	Color bool
	// Problems leaves out the nodes without findings.
	Problems bool
}

// WriteText writes the table of nodes, the RopewalkPeers and the findings.
func (m *Mesh) WriteText(out io.Writer, s Style) error {
	var b bytes.Buffer
	summary := m.Summary()
	if m.Name != "" {
		b.WriteString(sanitize(m.Name) + ", ")
	}
	fmt.Fprintf(&b, "%s\n", sanitize(summary.String()))
	if rows := m.nodeRows(s); len(rows) > 1 {
		b.WriteByte('\n')
		table(&b, rows)
	}
	if len(m.Peers) > 0 {
		b.WriteByte('\n')
		table(&b, m.peerRows())
	}
	b.WriteByte('\n')
	m.writeFindings(&b, s)
	_, err := out.Write(b.Bytes())
	return err
}

// WriteFindings writes the findings and a verdict.
func (m *Mesh) WriteFindings(out io.Writer, s Style) error {
	var b bytes.Buffer
	m.writeFindings(&b, s)
	_, err := out.Write(b.Bytes())
	return err
}

func (m *Mesh) writeFindings(b *bytes.Buffer, s Style) {
	for _, f := range m.Findings {
		names := joinSome(f.Nodes, 4)
		if names != "" {
			names += ": "
		}
		fmt.Fprintf(b, "%s %s%s\n", s.severity(f.Severity), sanitize(names), sanitize(truncate(f.Found, 500)))
		if f.Fix != "" {
			fmt.Fprintf(b, "        fix: %s\n", sanitize(f.Fix))
		}
	}
	fmt.Fprintf(b, "%s\n", m.Summary().Verdict())
}

func (s Style) severity(v Severity) string {
	text, colour := "warning", "33"
	if v == Failed {
		text, colour = "failed ", "31"
	}
	if !s.Color {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// joinSome joins the first names and counts the others.
func joinSome(names []string, most int) string {
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

func (m *Mesh) nodeRows(s Style) [][]string {
	rows := [][]string{{"NODE", "MODE", "KEY", "ENDPOINT", "PODS", "MTU", "PEERS", "SPREADS TO", "GATHERS", "STALE", "READY"}}
	worst := m.worstSeverities()
	for i := range m.Nodes {
		n := &m.Nodes[i]
		if s.Problems && worst[n.Name] == "" {
			continue
		}
		rows = append(rows, m.row(n))
	}
	if m.encrypts {
		rows = m.withColumn(rows, s, worst, "ENCRYPTS NODES", (*Node).encryptsText)
	}
	rows = m.withColumn(rows, s, worst, "ENCRYPTED", func(n *Node) string { return n.observedText("Encrypted") })
	return m.withColumn(rows, s, worst, "STRICT", func(n *Node) string { return n.observedText("Strict") })
}

// withColumn adds a column if any node has a text for it.
func (m *Mesh) withColumn(rows [][]string, s Style, worst map[string]Severity, title string, text func(*Node) string) [][]string {
	if !slices.ContainsFunc(m.Nodes, func(n Node) bool { return text(&n) != "" }) {
		return rows
	}
	rows[0] = append(rows[0], title)
	row := 1
	for i := range m.Nodes {
		if n := &m.Nodes[i]; !s.Problems || worst[n.Name] != "" {
			rows[row] = append(rows[row], text(n))
			row++
		}
	}
	return rows
}

// observedText returns the status of a condition, with the reason unless it is true; "": the node has none.
func (n *Node) observedText(kind string) string {
	for _, o := range n.Reported.Observed {
		if o.Type == kind && o.Status != Yes {
			return string(o.Status) + " (" + o.Reason + ")"
		} else if o.Type == kind {
			return string(Yes)
		}
	}
	return ""
}

func (m *Mesh) row(n *Node) []string {
	t := &n.Reported
	mode := string(t.Mode)
	if n.OptOut {
		mode = "excluded"
	} else if n.Origin != Whole {
		mode = string(n.Origin)
	}
	row := []string{n.Name, mode, keyPrefix(n), firstOrEmpty(t.Endpoints), joinSome(n.cidrs(), 2), numberOrEmpty(t.MTU)}
	if t.Mode == "" {
		return append(row, "", "", "", "", readyText(n))
	}
	peers := strconv.Itoa(t.Peers)
	if s, known := m.expected[n.Name]; known && n.participates() {
		peers += fmt.Sprintf("/%d", s.peers) // the expected number
	}
	gathers := ""
	if n.Agent != nil && t.Mode == mesh.ModeSpread {
		gathers = string(tristate(n.Agent.Gathers))
	}
	return append(row, peers, strconv.Itoa(t.SpreadsTo), gathers, numberOrEmpty(t.Unresponsive.Count), readyText(n))
}

// keyPrefix returns the beginning of a key, which identifies it for people, with "+" if there is a next key.
func keyPrefix(n *Node) string {
	key := n.key()
	if key == "" {
		return ""
	}
	if n.nextKey() != "" {
		return key[:8] + "+"
	}
	return key[:8]
}

func readyText(n *Node) string {
	switch {
	case n.Reported.Mode == "" && n.Reported.Ready == Unknown:
		return ""
	case n.Kubelet == No:
		return string(n.Reported.Ready) + ", node not ready"
	}
	return string(n.Reported.Ready)
}

func firstOrEmpty(texts []string) string {
	if len(texts) == 0 {
		return ""
	}
	return texts[0]
}

// numberOrEmpty returns "" for zero.
func numberOrEmpty(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

func (m *Mesh) peerRows() [][]string {
	rows := [][]string{{"ROPEWALKPEER", "KEY", "ALLOWED IPS", "ENDPOINT", "NODES", "ACCEPTED"}}
	for _, p := range m.Peers {
		rows = append(rows, []string{p.Name, p.Key[:min(len(p.Key), 8)], joinSome(p.AllowedIPs, 2), p.Endpoint, cmp.Or(p.Nodes, "all"), string(p.Accepted)})
	}
	return rows
}

// table writes aligned columns, two spaces apart. Empty cells become a dash.
func table(b *bytes.Buffer, rows [][]string) {
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i := range row {
			row[i] = cmp.Or(sanitize(row[i]), "-")
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	_ = w.Flush() // a Buffer returns no errors
}

// worstSeverities returns, by node, the worst severity of its findings.
func (m *Mesh) worstSeverities() map[string]Severity {
	worst := map[string]Severity{}
	for _, f := range slices.Backward(m.Findings) { // sorted: the failed ones come last here and win
		for _, name := range f.Nodes {
			worst[name] = f.Severity
		}
	}
	return worst
}

// sanitize replaces line breaks and characters that a terminal interprets.
func sanitize(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case strconv.IsPrint(r):
			return r
		case r == '\n', r == '\t':
			return ' '
		}
		return '?'
	}, text)
}

// truncate cuts a text to at most limit runes, with "…" behind them.
func truncate(text string, limit int) string {
	for i := range text {
		if limit == 0 {
			return text[:i] + "…"
		}
		limit--
	}
	return text
}
