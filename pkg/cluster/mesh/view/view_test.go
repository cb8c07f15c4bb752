// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/control/show"
	"github.com/ropewalk/ropewalk/test/golden"
)

var now = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

// cluster returns n nodes in mesh mode without problems.
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
			Reported: Reported{
				Mode: mesh.ModeMesh, Endpoints: []string{a.Endpoints[0].String()}, PodCIDRs: []string{pods.String()}, MTU: 1440, Peers: n - 1,
				SpreadsTo: n - 1, Ready: Yes, Generation: 1, ObservedGeneration: 1, KeyGeneration: 1, AgentVersion: "0.7.0", KernelVersion: "6.18.0",
			},
		})
	}
	return c
}

// clusterWithProblems returns a cluster with one of each problem.
func clusterWithProblems(n int) Cluster {
	c := cluster(n)
	at := func(i int) *Node { return &c.Nodes[i] }
	for i := range c.Nodes {
		at(i).Reported.Peers, at(i).Reported.SpreadsTo = n-4, n-4
	}
	at(1).Agent.Key, at(1).Reported.Peers = [32]byte{}, n-3 // no key yet
	at(2).Reported.MTU = 8941
	at(2).Reported.SpreadsTo = 0
	at(3).Agent, at(3).Origin, at(3).Reported = nil, NoAgent, Reported{Ready: Unknown}
	at(4).OptOut, at(4).Agent, at(4).Reported = true, nil, Reported{Ready: Unknown}
	at(5).Reported.Unresponsive = UnresponsivePeers{Count: 1, Nodes: []string{"node-01"}}
	c.Peers = []Peer{
		{Name: "laptop", Key: "IS9QmRBIHeKDPV/ZxWwp4PZ0qTbMPVzL3Mr0ZQEW4UM=", AllowedIPs: []string{"10.9.0.2/32"}, Accepted: Yes, Message: "a peer of all nodes in mode mesh"},
		{
			Name: "gateway", Key: "bad", AllowedIPs: []string{"10.244.0.0/24"}, Endpoint: "vpn.example.org:1", Nodes: "zone=b", Accepted: No,
			Message: "its allowed IP 10.244.0.0/24 overlaps the pods of node node-01",
		},
	}
	at(0).Reported.Message = "a \x1b[31mred\x1b[0m <b>note</b> \"here\" \\"
	return c
}

func TestOutputMatchesGoldenFiles(t *testing.T) {
	few, many, well := Build(clusterWithProblems(6)), Build(clusterWithProblems(20)), Build(cluster(3))
	encrypted := Build(partlyEncrypting())
	for name, write := range map[string]func(io.Writer) error{
		"well.txt":        func(w io.Writer) error { return well.WriteText(w, Style{}) },
		"encryption.txt":  func(w io.Writer) error { return encrypted.WriteText(w, Style{}) },
		"encryption.json": func(w io.Writer) error { return encrypted.WriteJSON(w, StatusDocument) },
		"troubled.txt":    func(w io.Writer) error { return few.WriteText(w, Style{}) },
		"problems.txt":    func(w io.Writer) error { return many.WriteText(w, Style{Problems: true, Color: true}) },
		"check.txt":       func(w io.Writer) error { return few.WriteFindings(w, Style{}) },
		"status.json":     func(w io.Writer) error { return few.WriteJSON(w, StatusDocument) },
		"check.json":      func(w io.Writer) error { return few.WriteJSON(w, CheckDocument) },
		"nothing.txt":     func(w io.Writer) error { m := Build(Cluster{Time: now}); return m.WriteText(w, Style{}) },
		"one-node.json":   func(w io.Writer) error { m := few.Filter(is("node-03")); return m.WriteJSON(w, StatusDocument) },
	} {
		var b bytes.Buffer
		if err := write(&b); err != nil {
			t.Fatal(err)
		}
		golden.Check(t, "testdata/"+name, b.Bytes())
	}
}

func is(name string) func(string) bool { return func(n string) bool { return n == name } }

// encrypting makes all nodes encrypt traffic between nodes.
func encrypting(c *Cluster) {
	for i := range c.Nodes {
		c.Nodes[i].Agent.EncryptsNodes = true
	}
}

// partlyEncrypting returns a cluster that has a node for each reason not to encrypt traffic between nodes.
func partlyEncrypting() Cluster {
	c := cluster(7)
	encrypting(&c)
	for i := 1; i < 5; i++ {
		c.Nodes[i].Agent.EncryptsNodes = false
	}
	c.Nodes[1].Reported.Message = "its disk is full; traffic between nodes is not encrypted: the addresses of the API server are unknown"
	c.Nodes[2].Reported.OldKernel, c.Nodes[2].Reported.KernelVersion = true, "5.10.0"
	c.Nodes[4].OptOut = true
	c.Nodes[5].Endpoint = netip.MustParseAddr("203.0.113.1")
	c.Nodes[5].Agent.Endpoints[0] = netip.MustParseAddrPort("203.0.113.1:51820")
	for i := range c.Nodes {
		c.Nodes[i].Reported.Peers, c.Nodes[i].Reported.SpreadsTo = 5, 5
	}
	return c
}

func TestJSONFollowsCommonSchema(t *testing.T) {
	if APIVersion != show.APIVersion {
		t.Errorf("%s, the others %s", APIVersion, show.APIVersion)
	}
	for _, n := range []int{0, 3, maxWhole + 1} {
		all := Build(cluster(n))
		for want, m := range map[int]Mesh{n: all, 0: all.Filter(is("none"))} {
			var b bytes.Buffer
			if err := m.WriteJSON(&b, StatusDocument); err != nil {
				t.Fatal(err)
			}
			var d struct {
				Nodes []any
			}
			if err := json.Unmarshal(b.Bytes(), &d); err != nil || len(d.Nodes) != want {
				t.Errorf("%d of %d nodes: got %d, error %v", want, n, len(d.Nodes), err)
			}
		}
	}
}

// findingOf returns the severity and the nodes of a kind of finding.
func findingOf(m Mesh, check string) (severity Severity, nodes []string) {
	for _, f := range slices.Backward(m.Findings) {
		if f.Check == check {
			severity, nodes = f.Severity, append(nodes, f.Nodes...)
		}
	}
	return severity, nodes
}

func TestCheckFindsEachProblem(t *testing.T) {
	for name, c := range map[string]struct {
		change   func(*Cluster)
		check    string
		severity Severity
		nodes    []string
	}{
		"no nodes":            {func(c *Cluster) { c.Nodes = nil }, "nodes", Failed, nil},
		"no agents":           {func(c *Cluster) { c.Nodes = c.Nodes[:1]; c.Nodes[0].Agent, c.Nodes[0].Reported = nil, Reported{} }, "agent", Failed, []string{"node-01"}},
		"no key":              {func(c *Cluster) { c.Nodes[0].Agent.Key = [32]byte{} }, "key", Failed, []string{"node-01"}},
		"a copied key":        {func(c *Cluster) { c.Nodes[2].Agent.Key = c.Nodes[1].Agent.Key }, "plan", Failed, []string{"node-03"}},
		"pods of another":     {func(c *Cluster) { c.Nodes[2].PodCIDRs = c.Nodes[1].PodCIDRs }, "plan", Failed, []string{"node-03"}},
		"other pods reported": {func(c *Cluster) { c.Nodes[2].Reported.PodCIDRs[0] = "10.9.0.0/24" }, "pods", Warning, []string{"node-03"}},
		"another MTU":         {func(c *Cluster) { c.Nodes[1].Reported.MTU = 8941 }, "mtu", Warning, []string{"node-02"}},
		"no MTU for IPv6":     {func(c *Cluster) { withSmallMTU(c) }, "mtu", Failed, []string{"node-01"}},
		"another mode":        {func(c *Cluster) { c.Nodes[1].Agent.Mode = mesh.ModeSpread }, "mode", Warning, []string{"node-02"}},
		"a peer too few":      {func(c *Cluster) { c.Nodes[1].Reported.Peers-- }, "peers", Warning, []string{"node-02"}},
		"a stale handshake":   {func(c *Cluster) { c.Nodes[1].Reported.Unresponsive = UnresponsivePeers{1, []string{"node-03"}} }, "handshakes", Failed, []string{"node-02"}},
		"a node that is off": {func(c *Cluster) {
			c.Nodes[1].Reported.Unresponsive = UnresponsivePeers{1, []string{"node-03"}}
			c.Nodes[2].Kubelet = No
		}, "handshakes", Warning, []string{"node-02"}},
		"packets beside the tunnel": {func(c *Cluster) {
			c.Nodes[1].Reported.Observed = []Observation{{"Strict", No, "Permissive", ""}, {"Encrypted", No, "BesideTunnel", "such as one"}}
		}, "observed", Failed, []string{"node-02"}},
		"no guard": {func(c *Cluster) {
			c.Nodes[1].Reported.Observed = []Observation{{"Encrypted", Unknown, "GuardMissing", "no BPF"}}
		}, "observed", Warning, []string{"node-02"}},
		"sessions without keys": {func(c *Cluster) {
			c.Nodes[1].Reported.Observed = []Observation{{"PostQuantum", No, "Downgraded", "with 1 peer"}}
		}, "observed", Warning, []string{"node-02"}},
		"no keys, which are required": {func(c *Cluster) {
			c.Nodes[1].Reported.Observed = []Observation{{"PostQuantum", No, "Blocked", "no data"}}
		}, "observed", Failed, []string{"node-02"}},
		"a failed agent":      {func(c *Cluster) { c.Nodes[1].Reported.Ready = No }, "conditions", Failed, []string{"node-02"}},
		"a note":              {func(c *Cluster) { c.Nodes[1].Reported.Message = "well, well" }, "conditions", Warning, []string{"node-02"}},
		"an unread spec":      {func(c *Cluster) { c.Nodes[1].Reported.Generation = 2 }, "spec", Warning, []string{"node-02"}},
		"a node that is gone": {func(c *Cluster) { c.Nodes[1].Origin = NoNode }, "owner", Warning, []string{"node-02"}},
		"an earlier node's":   {func(c *Cluster) { c.Nodes[1].Origin = OtherOwner }, "owner", Failed, []string{"node-02"}},
		"no agent":            {func(c *Cluster) { c.Nodes[1].Origin, c.Nodes[1].Agent, c.Nodes[1].Reported = NoAgent, nil, Reported{} }, "agent", Failed, []string{"node-02"}},
		"a new node": {func(c *Cluster) {
			c.Nodes[1].Origin, c.Nodes[1].Agent, c.Nodes[1].Reported, c.Nodes[1].Created = NoAgent, nil, Reported{}, now.Add(-time.Minute)
		}, "agent", Warning, []string{"node-02"}},
		"encrypts no traffic between nodes": {func(c *Cluster) { encrypting(c); c.Nodes[1].Agent.EncryptsNodes = false }, "encryption", Warning, []string{"node-02"}},
		"encrypts on an endpoint that is no InternalIP": {func(c *Cluster) {
			encrypting(c)
			c.Nodes[1].Endpoint = netip.MustParseAddr("203.0.113.1")
			c.Nodes[1].Agent.Endpoints[0] = netip.MustParseAddrPort("203.0.113.1:51820")
		}, "encryption", Warning, []string{"node-02"}},
		"does not gather": {func(c *Cluster) { spreading(c); c.Nodes[1].Agent.Gathers = false }, "spread", Warning, []string{"node-02"}},
	} {
		t.Run(name, func(t *testing.T) {
			cl := cluster(3)
			c.change(&cl)
			m := Build(cl)
			severity, nodes := findingOf(m, c.check)
			missing := func(name string) bool { return !slices.Contains(nodes, name) }
			if severity != c.severity || slices.ContainsFunc(c.nodes, missing) || slices.Contains(nodes, "node-01") != slices.Contains(c.nodes, "node-01") {
				t.Errorf("got %q of %v: %+v", severity, nodes, m.Findings)
			}
			if s := m.Summary(); (s.Failed > 0) != (c.severity == Failed) {
				t.Errorf("%s: got %+v", s.Verdict(), m.Findings)
			}
		})
	}
	if m := Build(cluster(3)); len(m.Findings) > 0 {
		t.Errorf("findings in a healthy cluster: %+v", m.Findings)
	}
}

func TestNoteRepeatedByPeersIsOneFinding(t *testing.T) {
	c := cluster(3)
	n := &c.Nodes[1]
	n.PodCIDRs = append(n.PodCIDRs, c.Nodes[0].PodCIDRs[0])
	n.Reported.PodCIDRs = append(n.Reported.PodCIDRs, c.Nodes[0].Reported.PodCIDRs[0])
	note := "its pod prefix 10.0.1.0/24 is not used: it overlaps the pods of node node-01"
	n.Reported.Message = note
	m := Build(c)
	if len(m.Findings) != 1 || m.Findings[0].Check != "plan" || !strings.Contains(m.Findings[0].Found, note) {
		t.Errorf("got %+v, want length 1", m.Findings)
	}
	c.Nodes[1].Reported.Message += "; well, well"
	m = Build(c)
	if s, _ := findingOf(m, "conditions"); s != Warning || len(m.Findings) != 2 {
		t.Errorf("got %+v, want length 2", m.Findings)
	}
}

func withSmallMTU(c *Cluster) {
	c.Nodes = c.Nodes[:1]
	n := &c.Nodes[0]
	n.Reported.MTU, n.Reported.Peers = 1200, 0
	n.PodCIDRs, n.Reported.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("2001:db8::/64")}, []string{"2001:db8::/64"}
}

// spreading switches all nodes to spread mode.
func spreading(c *Cluster) {
	for i := range c.Nodes {
		n := &c.Nodes[i]
		n.Agent.Mode, n.Agent.Key, n.Reported.Mode, n.Reported.MTU, n.Agent.Gathers = mesh.ModeSpread, [32]byte{}, mesh.ModeSpread, 0, true
	}
}

func TestTextHasNoControlCharactersOfNames(t *testing.T) {
	c := clusterWithProblems(8)
	for i := range c.Nodes {
		c.Nodes[i].Name = fmt.Sprintf("n%d\"\\\n<&'>\x00\x1b]\u202e-->", i)
		c.Nodes[i].Reported.Message = c.Nodes[i].Name
	}
	m := Build(c)
	var text bytes.Buffer
	if err := m.WriteText(&text, Style{}); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(text.String(), "\x00\x1b\u202e") {
		t.Errorf("got %q", &text)
	}
}

func TestLargeClusterIsSampled(t *testing.T) {
	c := cluster(maxWhole + 100)
	c.Nodes[7].Agent.Key = [32]byte{}
	m := Build(c)
	if len(m.expected) < sampledNodes || len(m.expected) > 2*sampledNodes {
		t.Errorf("the peers of %d nodes were computed", len(m.expected))
	}
	if _, nodes := findingOf(m, "key"); !slices.Equal(nodes, []string{"node-08"}) {
		t.Errorf("got %+v", m.Findings)
	}
}

func BenchmarkBuild(b *testing.B) {
	for _, n := range []int{50, 500, 5000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c := cluster(n)
			for b.Loop() {
				if m := Build(c); len(m.Nodes) != n {
					b.Fatal("nodes are missing")
				}
			}
		})
	}
}

func TestStatusShowsProgressWithMesh(t *testing.T) {
	c := cluster(4)
	c.Mesh = &MeshObject{UID: "second", Generation: 7, Cleartext: "Never"}
	for i := range c.Nodes {
		c.Nodes[i].Reported.MeshUID, c.Nodes[i].Reported.MeshGeneration = "second", 7
	}
	c.Nodes[1].Reported.MeshGeneration = 6
	c.Nodes[3].Reported.MeshUID = "first"
	m := Build(c)
	if s := m.Summary(); s.Mesh == nil || s.Mesh.Applied != 2 || !strings.Contains(s.String(), "RopewalkMesh generation 7 (cleartext Never) on 2 nodes") {
		t.Errorf("got %s", s)
	}
	if len(m.Findings) != 1 || m.Findings[0].Check != "spec" || !slices.Equal(m.Findings[0].Nodes, []string{"node-02", "node-04"}) {
		t.Errorf("got %+v", m.Findings)
	}
	if m = Build(cluster(3)); m.Summary().Mesh != nil || len(m.Findings) != 0 {
		t.Errorf("without one: %+v", m.Summary())
	}
}
