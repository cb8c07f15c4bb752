// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/mesh"
	"github.com/ropewalk/ropewalk/pkg/show"
	"github.com/ropewalk/ropewalk/test/golden"
)

var now = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

// cluster has n nodes that all do well, in mesh.
func cluster(n int) Cluster {
	c := Cluster{Name: "east", Time: now}
	for i := 1; i <= n; i++ {
		addr := netip.AddrFrom4([4]byte{192, 0, byte(2 + i/250), byte(i % 250)})
		pods := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i / 250), byte(i % 250), 0}), 24)
		a := &mesh.Agent{Mode: mesh.ModeMesh, Endpoints: []netip.AddrPort{netip.AddrPortFrom(addr, 51820)}, Gathers: true}
		a.Key[0], a.Key[1], a.Key[2] = 1, byte(i), byte(i>>8)
		c.Nodes = append(c.Nodes, Node{
			Node: mesh.Node{
				Name: fmt.Sprintf("node-%02d", i), Created: now.Add(-time.Duration(1000-i) * time.Hour), Addrs: []netip.Addr{addr},
				PodCIDRs: []netip.Prefix{pods}, Agent: a,
			},
			Origin: Whole, Kubelet: Yes,
			Told: Told{
				Mode: mesh.ModeMesh, Endpoints: []string{a.Endpoints[0].String()}, PodCIDRs: []string{pods.String()}, MTU: 1440, Peers: n - 1,
				SpreadsTo: n - 1, Ready: Yes, Generation: 1, Observed: 1, KeyGeneration: 1, AgentVersion: "0.7.0", KernelVersion: "6.18.0",
			},
		})
	}
	return c
}

// troubled has one of everything that goes wrong.
func troubled(n int) Cluster {
	c := cluster(n)
	at := func(i int) *Node { return &c.Nodes[i] }
	for i := range c.Nodes {
		at(i).Told.Peers, at(i).Told.SpreadsTo = n-4, n-4
	}
	at(1).Agent.Key, at(1).Told.Peers = [32]byte{}, n-3 // no key yet
	at(2).Told.MTU = 8941
	at(2).Told.SpreadsTo = 0
	at(3).Agent, at(3).Origin, at(3).Told = nil, NoAgent, Told{Ready: Unknown}
	at(4).OptOut, at(4).Agent, at(4).Told = true, nil, Told{Ready: Unknown}
	at(5).Told.Stale = Stale{Count: 1, Nodes: []string{"node-01"}}
	at(0).Told.Message = "a \x1b[31mred\x1b[0m <b>note</b> \"here\" \\"
	return c
}

func TestDrawingsAndTablesAreThoseOfTheGoldenFiles(t *testing.T) {
	few, many, well := Look(troubled(6)), Look(troubled(20)), Look(cluster(3))
	for name, write := range map[string]func(io.Writer) error{
		"well.txt":      func(w io.Writer) error { return well.WriteText(w, Style{Links: true}) },
		"well.svg":      well.WriteSVG,
		"troubled.txt":  func(w io.Writer) error { return few.WriteText(w, Style{Links: true}) },
		"problems.txt":  func(w io.Writer) error { return many.WriteText(w, Style{Problems: true, Color: true}) },
		"check.txt":     func(w io.Writer) error { return few.WriteFindings(w, Style{}) },
		"troubled.dot":  few.WriteDOT,
		"troubled.svg":  few.WriteSVG,
		"crowd.svg":     many.WriteSVG,
		"status.json":   func(w io.Writer) error { return few.WriteJSON(w, StatusDocument) },
		"graph.json":    func(w io.Writer) error { return few.WriteJSON(w, GraphDocument) },
		"check.json":    func(w io.Writer) error { return few.WriteJSON(w, CheckDocument) },
		"nothing.txt":   func(w io.Writer) error { m := Look(Cluster{Time: now}); return m.WriteText(w, Style{}) },
		"nothing.svg":   func(w io.Writer) error { m := Look(Cluster{Time: now}); return m.WriteSVG(w) },
		"one-node.json": func(w io.Writer) error { m := few.Only(is("node-03")); return m.WriteJSON(w, GraphDocument) },
	} {
		var b bytes.Buffer
		if err := write(&b); err != nil {
			t.Fatal(err)
		}
		golden.Check(t, "testdata/"+name, b.Bytes())
	}
}

func is(name string) func(string) bool { return func(n string) bool { return n == name } }

func TestLargeDrawingLeavesOutWhatWouldHideTheRest(t *testing.T) {
	m := Look(troubled(50))
	var b bytes.Buffer
	if err := m.WriteSVG(&b); err != nil {
		t.Fatal(err)
	}
	if dir := os.Getenv("ROPEWALK_DRAWINGS"); dir != "" { // to look at
		if err := os.WriteFile(filepath.Join(dir, "fifty.svg"), b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(b.String(), "no tunnel (no peer"); n > 0 || !strings.Contains(b.String(), "not drawn") {
		t.Errorf("%d links of nodes without any tunnel are drawn", n)
	}
}

func TestJSONIsOfTheSameSchemaAsTheOtherCommands(t *testing.T) {
	if APIVersion != show.APIVersion {
		t.Errorf("%s, the others %s", APIVersion, show.APIVersion)
	}
	for _, n := range []int{0, 3, MaxLinked + 1} {
		m := Look(cluster(n))
		var b bytes.Buffer
		if err := m.WriteJSON(&b, GraphDocument); err != nil {
			t.Fatal(err)
		}
		var d struct {
			Nodes []any
			Links *[]any
		}
		if err := json.Unmarshal(b.Bytes(), &d); err != nil || len(d.Nodes) != n || (d.Links == nil) != (n > MaxLinked) {
			t.Errorf("%d nodes: %v", n, err)
		}
	}
}

// finds returns what is found of a kind: how bad it is, and of which nodes.
func finds(m Mesh, check string) (severity Severity, nodes []string) {
	for _, f := range slices.Backward(m.Findings) {
		if f.Check == check {
			severity, nodes = f.Severity, append(nodes, f.Nodes...)
		}
	}
	return severity, nodes
}

func TestWhatIsWrongIsFound(t *testing.T) {
	for name, c := range map[string]struct {
		change   func(*Cluster)
		check    string
		severity Severity
		nodes    []string
	}{
		"no nodes":          {func(c *Cluster) { c.Nodes = nil }, "nodes", Failed, nil},
		"no agents":         {func(c *Cluster) { c.Nodes = c.Nodes[:1]; c.Nodes[0].Agent, c.Nodes[0].Told = nil, Told{} }, "agent", Failed, []string{"node-01"}},
		"no key":            {func(c *Cluster) { c.Nodes[0].Agent.Key = [32]byte{} }, "key", Failed, []string{"node-01"}},
		"a copied key":      {func(c *Cluster) { c.Nodes[2].Agent.Key = c.Nodes[1].Agent.Key }, "plan", Failed, []string{"node-03"}},
		"pods of another":   {func(c *Cluster) { c.Nodes[2].PodCIDRs = c.Nodes[1].PodCIDRs }, "plan", Failed, []string{"node-03"}},
		"other pods told":   {func(c *Cluster) { c.Nodes[2].Told.PodCIDRs[0] = "10.9.0.0/24" }, "pods", Warning, []string{"node-03"}},
		"another MTU":       {func(c *Cluster) { c.Nodes[1].Told.MTU = 8941 }, "mtu", Warning, []string{"node-02"}},
		"no MTU for IPv6":   {func(c *Cluster) { small(c) }, "mtu", Failed, []string{"node-01"}},
		"another mode":      {func(c *Cluster) { c.Nodes[1].Agent.Mode = mesh.ModeSpread }, "mode", Warning, []string{"node-02"}},
		"a peer too few":    {func(c *Cluster) { c.Nodes[1].Told.Peers-- }, "peers", Warning, []string{"node-02"}},
		"a stale handshake": {func(c *Cluster) { c.Nodes[1].Told.Stale = Stale{1, []string{"node-03"}} }, "handshakes", Failed, []string{"node-02"}},
		"a node that is off": {func(c *Cluster) {
			c.Nodes[1].Told.Stale = Stale{1, []string{"node-03"}}
			c.Nodes[2].Kubelet = No
		}, "handshakes", Warning, []string{"node-02"}},
		"a failed agent":      {func(c *Cluster) { c.Nodes[1].Told.Ready = No }, "conditions", Failed, []string{"node-02"}},
		"a note":              {func(c *Cluster) { c.Nodes[1].Told.Message = "well, well" }, "conditions", Warning, []string{"node-02"}},
		"an unread spec":      {func(c *Cluster) { c.Nodes[1].Told.Generation = 2 }, "spec", Warning, []string{"node-02"}},
		"a node that is gone": {func(c *Cluster) { c.Nodes[1].Origin = NoNode }, "owner", Warning, []string{"node-02"}},
		"an earlier node's":   {func(c *Cluster) { c.Nodes[1].Origin = OtherOwner }, "owner", Failed, []string{"node-02"}},
		"no agent":            {func(c *Cluster) { c.Nodes[1].Origin, c.Nodes[1].Agent, c.Nodes[1].Told = NoAgent, nil, Told{} }, "agent", Failed, []string{"node-02"}},
		"a new node": {func(c *Cluster) {
			c.Nodes[1].Origin, c.Nodes[1].Agent, c.Nodes[1].Told, c.Nodes[1].Created = NoAgent, nil, Told{}, now.Add(-time.Minute)
		}, "agent", Warning, []string{"node-02"}},
		"does not gather": {func(c *Cluster) { spreading(c); c.Nodes[1].Agent.Gathers = false }, "spread", Warning, []string{"node-02"}},
	} {
		t.Run(name, func(t *testing.T) {
			cl := cluster(3)
			c.change(&cl)
			m := Look(cl)
			severity, nodes := finds(m, c.check)
			missing := func(name string) bool { return !slices.Contains(nodes, name) }
			if severity != c.severity || slices.ContainsFunc(c.nodes, missing) || slices.Contains(nodes, "node-01") != slices.Contains(c.nodes, "node-01") {
				t.Errorf("got %q of %v: %+v", severity, nodes, m.Findings)
			}
			if s := m.Summary(); (s.Failed > 0) != (c.severity == Failed) {
				t.Errorf("%s: %+v", s.Verdict(), m.Findings)
			}
		})
	}
	m := Look(cluster(3))
	if len(m.Findings) > 0 {
		t.Errorf("all is well: %+v", m.Findings)
	}
}

func TestNoteThatOthersMakeTooIsFoundOnce(t *testing.T) {
	c := cluster(3)
	n := &c.Nodes[1]
	n.PodCIDRs = append(n.PodCIDRs, c.Nodes[0].PodCIDRs[0])
	n.Told.PodCIDRs = append(n.Told.PodCIDRs, c.Nodes[0].Told.PodCIDRs[0])
	note := "its pods' 10.0.1.0/24 overlaps those of node-01"
	n.Told.Message = note
	m := Look(c)
	if len(m.Findings) != 1 || m.Findings[0].Check != "plan" || !strings.Contains(m.Findings[0].Found, note) {
		t.Errorf("%+v", m.Findings)
	}
	c.Nodes[1].Told.Message += "; well, well"
	m = Look(c)
	if s, _ := finds(m, "conditions"); s != Warning || len(m.Findings) != 2 {
		t.Errorf("%+v", m.Findings)
	}
}

func small(c *Cluster) {
	c.Nodes = c.Nodes[:1]
	n := &c.Nodes[0]
	n.Told.MTU, n.Told.Peers = 1200, 0
	n.PodCIDRs, n.Told.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("2001:db8::/64")}, []string{"2001:db8::/64"}
}

// spreading makes all nodes be in the mode spread.
func spreading(c *Cluster) {
	for i := range c.Nodes {
		n := &c.Nodes[i]
		n.Agent.Mode, n.Agent.Key, n.Told.Mode, n.Told.MTU, n.Agent.Gathers = mesh.ModeSpread, [32]byte{}, mesh.ModeSpread, 0, true
	}
}

func TestLinkIsWhatItsTwoEndsMakeOfIt(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Cluster)
		want   Kind
	}{
		"both spread":      {func(*Cluster) {}, BothWays},
		"one does":         {func(c *Cluster) { c.Nodes[0].Told.SpreadsTo = 0 }, OneWay},
		"none does":        {func(c *Cluster) { c.Nodes[0].Told.SpreadsTo, c.Nodes[1].Told.SpreadsTo = 0, 0 }, Tunnel},
		"one, perhaps":     {func(c *Cluster) { c.Nodes[0].Told.SpreadsTo, c.Nodes[1].Told.SpreadsTo = 1, 0 }, Tunnel},
		"stale":            {func(c *Cluster) { c.Nodes[1].Told.Stale = Stale{1, []string{"node-01"}} }, Silent},
		"another is stale": {func(c *Cluster) { c.Nodes[1].Told.Stale = Stale{1, []string{"node-03"}} }, BothWays},
		"stale, perhaps":   {func(c *Cluster) { c.Nodes[1].Told.Stale = Stale{2, []string{"node-00"}} }, OneWay},
		"others are stale": {func(c *Cluster) { c.Nodes[1].Told.Stale = Stale{2, []string{"node-03"}} }, BothWays},
		"no key":           {func(c *Cluster) { c.Nodes[1].Agent.Key = [32]byte{} }, Nothing},
		"modes differ":     {func(c *Cluster) { c.Nodes[1].Agent.Mode = mesh.ModeSpread }, Nothing},
		"mode spread":      {spreading, BothWays},
		"one gathers":      {func(c *Cluster) { spreading(c); c.Nodes[1].Agent.Gathers = false; c.Nodes[0].Told.SpreadsTo = 1 }, OneWay},
	} {
		cl := cluster(3)
		c.change(&cl)
		m := Look(cl)
		if got := m.Links[0]; got.Kind != c.want || got.A != "node-01" || got.B != "node-02" {
			t.Errorf("%s: %+v, want %s", name, got, c.want)
		}
	}
	cl := cluster(3)
	cl.Nodes[1].OptOut = true
	if m := Look(cl); len(m.Links) != 1 {
		t.Errorf("a node that opted out is to have no link: %+v", m.Links)
	}
}

func TestDrawingsAreWellFormedWhateverTheAPITells(t *testing.T) {
	c := troubled(8)
	for i := range c.Nodes {
		c.Nodes[i].Name = fmt.Sprintf("n%d\"\\\n<&'>\x00\x1b]\u202e-->", i)
		c.Nodes[i].Told.Message = c.Nodes[i].Name
	}
	m := Look(c)
	var svg, dot, text bytes.Buffer
	if err := errors.Join(m.WriteSVG(&svg), m.WriteDOT(&dot), m.WriteText(&text, Style{Links: true})); err != nil {
		t.Fatal(err)
	}
	d := xml.NewDecoder(&svg)
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if err := parseDOT(dot.String()); err != nil {
		t.Errorf("%v\n%s", err, &dot)
	}
	if strings.ContainsAny(text.String(), "\x00\x1b\u202e") {
		t.Errorf("%q", &text)
	}
	for _, name := range []string{"troubled.dot"} {
		graph, err := os.ReadFile(filepath.Join("testdata", name))
		if err == nil {
			err = parseDOT(string(graph))
		}
		if err != nil {
			t.Error(err)
		}
	}
}

func TestLargeClusterIsLookedAtWithSomeNodesEyes(t *testing.T) {
	c := cluster(MaxLinked + 100)
	c.Nodes[7].Agent.Key = [32]byte{}
	m := Look(c)
	if len(m.Links) > 0 || len(m.sees) < observers || len(m.sees) > 2*observers {
		t.Errorf("%d links, %d eyes", len(m.Links), len(m.sees))
	}
	if _, nodes := finds(m, "key"); !slices.Equal(nodes, []string{"node-08"}) {
		t.Errorf("%+v", m.Findings)
	}
}

func TestNamesAreShortenedByTheDomainThatAllAreOf(t *testing.T) {
	for _, c := range []struct {
		names []string
		want  string
	}{
		{[]string{"a.eu.example", "b.eu.example"}, ".eu.example"},
		{[]string{"a.eu.example", "b.us.example"}, ".example"},
		{[]string{"a.eu.example", "b"}, ""},
		{[]string{"a.eu.example"}, ""},
		{[]string{"node-1", "node-2"}, ""},
	} {
		var nodes []Node
		for _, n := range c.names {
			nodes = append(nodes, Node{Node: mesh.Node{Name: n}})
		}
		if got := commonDomain(nodes); got != c.want {
			t.Errorf("%v: %q", c.names, got)
		}
	}
}

func BenchmarkLook(b *testing.B) {
	for _, n := range []int{50, 500, 5000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c := cluster(n)
			for b.Loop() {
				if m := Look(c); len(m.Nodes) != n {
					b.Fatal("nodes are missing")
				}
			}
		})
	}
}
