// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/ebpf/guard"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/test/expect"
)

// away is how long the API server is unreachable.
var away = flag.Duration("away", time.Minute, "how long the API server is unreachable")

// setMesh writes the RopewalkMesh. Without other values, cleartext is refused and the prefixes of pods are the lab's.
func (a *api) setMesh(spec map[string]any) {
	a.Helper()
	if a.account != meshAgent {
		a.applyFile(kustomized("mesh")) // the rights of agents in this mode
		a.account = meshAgent
	}
	all := map[string]any{"cleartext": "Never", "podCIDRs": []any{"10.244.0.0/16", pods6}}
	maps.Copy(all, spec)
	_, err := a.dynamic.Resource(rwmeshes).Apply(a.Context(), "default", newMeshObject("default", all), metav1.ApplyOptions{FieldManager: "administrator", Force: true})
	expect.NoError(a, err)
}

// newMeshObject returns a RopewalkMesh as unstructured data.
func newMeshObject(name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "ropewalk.io/v1alpha1", "kind": "RopewalkMesh", "metadata": map[string]any{"name": name}, "spec": spec,
	}}
}

// startMesh starts the agent, and the engine if none runs. All tunnels of the machine share one socket directory, so each has a name of
// its own. It writes the RopewalkMesh if there is none.
func (n *node) startMesh(args ...string) {
	n.l.Helper()
	if n.l.account != meshAgent {
		n.l.setMesh(nil)
	}
	if n.engine == nil {
		n.startEngine()
	}
	n.start(append([]string{
		"--mode", "mesh", "--key-dir", n.keys, "--engine-config", n.engineConfig(), "--tunnel", n.tunnel(),
	}, args...)...)
}

func (n *node) tunnel() string { return "k" + n.l.net.Tag() + n.name[len("node-"):] }

// newMesh returns a lab in which all nodes have a pod and an agent. It first verifies that the pods' traffic is readable
// without agents.
func newMesh(t *testing.T, nodes int) (*lab, []*pod) {
	t.Helper()
	l := newLab(t, nodes)
	var pods []*pod
	for _, n := range l.nodes {
		pods = append(pods, n.addPod())
	}
	l.openly(pods)
	for _, n := range l.nodes {
		n.startMesh()
	}
	l.awaitStatus("all are peers of all", func(st published) bool {
		return st.Mode == v1alpha1.ModeMesh && st.PublicKey != "" && int(st.Peers) == nodes-1
	})
	return l, pods
}

// reach waits until each pod has reached each other.
func (l *lab) reach(pods []*pod) {
	l.Helper()
	for _, from := range pods {
		for _, to := range pods {
			if from != to {
				expect.EventuallyNoError(l, "a ping from "+from.n.name+" to "+to.n.name, func() error { return from.ping(to) })
			}
		}
	}
}

// openly has pods reach each other without agents, and verifies that the eavesdropper sees the plaintext.
func (l *lab) openly(pods []*pod) {
	l.Helper()
	e := l.eavesdrop()
	l.reach(pods)
	if len(e.end(l)) == 0 {
		l.Error("the eavesdropper sees no plaintext without encryption")
	}
}

// refused pings for a while and fails if any ping is answered.
func (l *lab) refused(from, to *pod) {
	l.Helper()
	for range 3 {
		if err := from.ping(to); err == nil {
			l.Errorf("%s reaches %s without a tunnel", from.n.name, to.n.name)
		}
	}
}

// dropped returns the node's drop counter of a reason.
func (n *node) dropped(reason string) int {
	n.l.Helper()
	text, err := n.metrics()
	expect.NoError(n.l, err)
	series := fmt.Sprintf("ropewalk_dropped_packets_total{interface=%q,reason=%q,", n.tunnel(), reason)
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, series) {
			v, err := strconv.Atoi(strings.TrimSpace(line[strings.LastIndex(line, " "):]))
			expect.NoError(n.l, err)
			return v
		}
	}
	return -1
}

func TestPodTrafficIsEncrypted(t *testing.T) {
	l, pods := newMesh(t, 4)
	l.awaitStatus("the MTU", func(st published) bool { return st.MTU == 1440 })
	e := l.eavesdrop()
	l.reach(pods)
	for i, from := range pods {
		if err := from.exchange(pods[(i+1)%len(pods)]); err != nil {
			t.Error(err)
		}
	}
	expect.EventuallyNoError(l, "encrypted messages are seen", func() error {
		if n := e.seen(); n < 100 {
			return fmt.Errorf("only %d were", n)
		}
		return nil
	})
	for _, n := range l.nodes {
		n.shows(fmt.Sprintf("ropewalk_interface_up{interface=%q} 1\n", n.tunnel()))
		n.shows(fmt.Sprintf("ropewalk_peers{interface=%q,state=\"established\"} 3\n", n.tunnel()))
	}

	// A node leaves: the others forget its key, and packets for its pods are dropped.
	gone := l.nodes[3]
	gone.halt()
	l.refused(pods[3], pods[0])
	expect.NoError(l, l.clients.CoreV1().Nodes().Delete(t.Context(), gone.name, metav1.DeleteOptions{}))
	l.nodes = l.nodes[:3]
	l.awaitStatus("a node leaves", func(st published) bool { return st.Peers == 2 })
	l.refused(pods[0], pods[3])
	expect.EventuallyNoError(l, "packets that would have left in the clear are counted", func() error {
		if n := l.nodes[0].dropped("tx_no_peer"); n < 3 {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
	l.reach(pods[:3])

	// Another program deletes the agent's routes: the agent repairs and counts that.
	l.nodes[0].reboot()
	expect.EventuallyNoError(l, "the routes are repaired", func() error {
		n := l.nodes[0].gauge("drift_total")
		if n < 2 && l.nodes[0].ruled() {
			l.nodes[0].reboot() // a reconcile for another reason came first, which does not count as drift
		}
		if n < 2 || !l.nodes[0].ruled() {
			return fmt.Errorf("%d changes", n)
		}
		return nil
	})
	l.reach(pods[:3])
	e.stop(l)
}

// TestMeshRollsOutWithoutPartition starts agents one by one on a cluster with traffic. Once all nodes are peers, nothing leaves or
// enters in the clear any more.
func TestMeshRollsOutWithoutPartition(t *testing.T) {
	l := newLab(t, 3)
	var pods []*pod
	for _, n := range l.nodes {
		pods = append(pods, n.addPod())
	}
	l.openly(pods)
	l.setMesh(map[string]any{"cleartext": "Auto"})
	for i, n := range l.nodes {
		n.startMesh()
		expect.EventuallyNoError(l, "the other agents know of "+n.name, func() error {
			for _, o := range l.nodes[:i+1] {
				if _, err := o.metrics(); err != nil {
					return err
				}
				if peers, without := o.gauge("peers"), o.gauge("nodes_without_tunnel"); peers != i || without != 2-i {
					return fmt.Errorf("%s has %d peers, and %d nodes without a tunnel", o.name, peers, without)
				}
			}
			return nil
		})
		l.reach(pods)
	}
	for _, n := range l.nodes {
		expect.EventuallyNoError(l, n.name+" refuses cleartext", func() error {
			if n.gauge("cleartext") != 0 {
				l.reach(pods) // a node is not strict before it has seen a pod's packet in the tunnel
				return errors.New("not yet")
			}
			return nil
		})
	}
	e := l.eavesdrop()
	l.reach(pods)
	e.stop(l)

	// A node without its agent, guard and routes sends in the clear. The others drop that.
	spoofer, target := l.nodes[2], l.nodes[0]
	before := target.gauge("plaintext_dropped_packets_total")
	spoofer.halt()
	spoofer.reboot()
	expect.NoError(t, spoofer.host.Do(func() error { return guard.Remove(l.bpf) })) // it would drop them first
	l.refused(pods[2], pods[0])
	if n := target.gauge("plaintext_dropped_packets_total") - before; n < 3 {
		t.Errorf("%d unencrypted packets were dropped and counted, want 3 at least", n)
	}
	spoofer.startMesh()
	l.reach(pods)
}

// TestRopewalkNodeMadeByAdministratorIsAdopted creates a RopewalkNode as a tool that applies manifests does, before the agent runs.
func TestRopewalkNodeMadeByAdministratorIsAdopted(t *testing.T) {
	l := newLab(t, 2)
	n := l.nodes[0]
	made := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "ropewalk.io/v1alpha1", "kind": "RopewalkNode", "spec": map[string]any{"port": int64(51900)},
		"metadata": map[string]any{"name": n.name, "labels": map[string]any{"app.kubernetes.io/managed-by": "gitops"}},
	}}
	_, err := l.dynamic.Resource(rwnodes).Create(t.Context(), made, metav1.CreateOptions{})
	expect.NoError(l, err)
	for _, n := range l.nodes {
		n.startMesh()
	}
	l.awaitStatus("both are peers", func(st published) bool { return st.Peers == 1 })
	if st, err := l.status(n.name); err != nil || len(st.Endpoints) == 0 || st.Endpoints[0] != "192.0.2.1:51900" {
		t.Errorf("its endpoints are %v, %v", st.Endpoints, err)
	}
	o, err := l.dynamic.Resource(rwnodes).Get(t.Context(), n.name, metav1.GetOptions{})
	expect.NoError(l, err)
	if owners := o.GetOwnerReferences(); len(owners) != 1 || owners[0].Kind != "Node" || owners[0].Name != n.name || o.GetLabels()["app.kubernetes.io/managed-by"] != "gitops" {
		t.Errorf("owners %v, labels %v", owners, o.GetLabels())
	}

	// A tool replaces the object by its manifest. Nobody loses the peer.
	replacement := made.DeepCopy()
	replacement.SetResourceVersion(o.GetResourceVersion())
	expect.NoError(l, unstructured.SetNestedField(replacement.Object, int64(51901), "spec", "port"))
	_, err = l.dynamic.Resource(rwnodes).Update(t.Context(), replacement, metav1.UpdateOptions{})
	expect.NoError(l, err)
	expect.EventuallyNoError(l, "the replaced object is adopted", func() error {
		o, err := l.dynamic.Resource(rwnodes).Get(t.Context(), n.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		st, err := l.status(n.name)
		if err == nil && (len(o.GetOwnerReferences()) != 1 || !slices.Contains(st.Endpoints, "192.0.2.1:51901")) {
			err = fmt.Errorf("owners %v, endpoints %v", o.GetOwnerReferences(), st.Endpoints)
		}
		return err
	})
	for _, n := range l.nodes {
		if peers := n.gauge("peers"); peers != 1 {
			t.Errorf("%s has %d peers", n.name, peers)
		}
	}
}

// TestPodPrefixesOfCilium: Cilium's default IPAM mode does not use Node.spec.podCIDRs.
func TestPodPrefixesOfCilium(t *testing.T) {
	l := newLab(t, 2)
	l.setMesh(nil)
	for _, o := range manifest(l.api, "testdata/everything.yaml") { // the right to read CiliumNodes
		if o.GetKind() == "ClusterRole" {
			expect.NoError(l, l.apply(o))
		}
	}
	l.applyFile("testdata/ciliumnodes.yaml")
	var pods []*pod
	for _, n := range l.nodes {
		pods = append(pods, n.addPod())
		n.startMesh("--pod-cidr-source=cilium")
	}
	l.awaitStatus("nodes without pods are reported", func(st published) bool {
		return st.Peers == 1 && len(st.PodCIDRs) == 0 && slices.ContainsFunc(st.Conditions, func(c metav1.Condition) bool {
			return strings.Contains(c.Message, "no pod prefixes of this node are known")
		})
	})
	for _, n := range l.nodes {
		if n.gauge("problems") != 1 {
			t.Errorf("%s has %d problems", n.name, n.gauge("problems"))
		}
	}
	events := schema.GroupVersionResource{Group: "events.k8s.io", Version: "v1", Resource: "events"}
	for _, n := range l.nodes {
		expect.EventuallyNoError(l, "an Event of "+n.name, func() error {
			all, err := l.dynamic.Resource(events).Namespace("default").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			for _, e := range all.Items {
				note, _, _ := unstructured.NestedString(e.Object, "note")
				name, _, _ := unstructured.NestedString(e.Object, "regarding", "name")
				if name == n.name && strings.HasPrefix(note, "no pod prefixes of this node are known") {
					return nil
				}
			}
			return fmt.Errorf("%d others", len(all.Items))
		})
	}
	l.refused(pods[0], pods[1])
	for _, n := range l.nodes {
		expect.EventuallyNoError(l, "a CiliumNode", func() error {
			return l.apply(&unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": map[string]any{"name": n.name},
				"spec": map[string]any{"ipam": map[string]any{"podCIDRs": []any{n.pods.String()}}},
			}})
		})
	}
	e := l.eavesdrop()
	l.reach(pods)
	e.stop(l)
	l.awaitStatus("the prefixes", func(st published) bool { return len(st.PodCIDRs) == 1 && st.PodCIDRSource == "cilium" })
}

func TestDualStackPodTrafficIsEncrypted(t *testing.T) {
	l := layLab(t, 2, true)
	var pods []*pod
	for _, n := range l.nodes {
		pods = append(pods, n.addPod())
	}
	kinds := [][]*pod{pods, six(pods)}
	for _, of := range kinds {
		l.openly(of)
	}
	for _, n := range l.nodes {
		n.startMesh()
	}
	l.awaitStatus("both are peers", func(st published) bool { return st.Peers == 1 && st.MTU == 1420 && len(st.PodCIDRs) == 2 })
	e := l.eavesdrop()
	for _, of := range kinds {
		l.reach(of)
		if err := of[0].exchange(of[1]); err != nil {
			t.Error(err)
		}
	}
	n := l.nodes[1]
	n.kill()
	n.stopEngine()
	for _, of := range kinds {
		l.refused(of[1], of[0])
	}
	n.startMesh()
	for _, of := range kinds {
		l.reach(of)
	}
	e.stop(l)
}

func TestNodeKeepsItsKey(t *testing.T) {
	l, pods := newMesh(t, 2)
	l.reach(pods)
	e := l.eavesdrop()
	n := l.nodes[1]
	first, err := l.status(n.name)
	expect.NoError(l, err)
	n.halt()
	// Without its engine, nothing leaves in the clear.
	l.refused(pods[1], pods[0])
	n.startMesh()
	l.reach(pods)
	if again, err := l.status(n.name); err != nil || again.PublicKey != first.PublicKey {
		t.Errorf("after a restart its key is %s, was %s (%v)", again.PublicKey, first.PublicKey, err)
	}

	n.stop()
	expect.NoError(l, os.RemoveAll(n.keys))
	n.startMesh()
	expect.EventuallyNoError(l, "another key", func() error {
		st, err := l.status(n.name)
		if err == nil && st.PublicKey == first.PublicKey {
			err = errors.New("it is the same")
		}
		return err
	})
	l.reach(pods)
	e.stop(l)
	st, err := os.Stat(filepath.Join(n.keys, "private.key"))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("got %v, error %v, want no error", st, err)
	}
}

func TestRebootedNodeLeaksNothingBeforeSync(t *testing.T) {
	l, pods := newMesh(t, 2)
	l.reach(pods)
	n := l.nodes[1]
	n.halt()
	l.door.lock()
	n.reboot()
	e := l.eavesdrop()
	n.startMesh()
	expect.EventuallyNoError(l, "the first routes", func() error {
		if n.ruled() {
			return nil
		}
		return errors.New("there are none")
	})
	l.reach(pods) // through the tunnel of the engine's file
	l.door.unlock()
	expect.EventuallyNoError(l, "it has reached the API", func() error {
		if n.gauge("reconciles_total") < 1 {
			return errors.New("not yet")
		}
		return nil
	})
	l.reach(pods)
	e.stop(l)
}

// TestBootedNodeLeaksNothingBeforeAgent: the host applies the agent's blackhole routes before any pod starts.
func TestBootedNodeLeaksNothingBeforeAgent(t *testing.T) {
	l, pods := newMesh(t, 2)
	l.reach(pods)
	n := l.nodes[1]
	n.halt()
	n.reboot()
	expect.NoError(l, n.host.Do(func() error { return hostnet.DeleteLink(n.tunnel()) }))
	out, err := n.host.Command(t.Context(), "ip", "-force", "-batch", filepath.Join(n.keys, "blackholes-ipv4")).CombinedOutput() // as in deploy/systemd
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	e := l.eavesdrop()
	l.refused(pods[1], pods[0])
	n.startMesh()
	l.reach(pods)
	e.stop(l)
}

// reboot removes the kernel's state of the agent.
func (n *node) reboot() {
	n.l.Helper()
	expect.NoError(n.l, n.host.Do(func() error {
		routes, err := hostnet.Dump(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: ropewalkTable}, netlink.RT_FILTER_TABLE)
		})
		for _, r := range routes {
			err = errors.Join(err, netlink.RouteDel(&r))
		}
		rules, listErr := rulesIPv4()
		for _, r := range rules {
			if r.Protocol == ropewalkProtocol {
				err = errors.Join(err, netlink.RuleDel(&r))
			}
		}
		return errors.Join(err, listErr)
	}))
}

func rulesIPv4() ([]netlink.Rule, error) {
	return hostnet.Dump(func() ([]netlink.Rule, error) { return netlink.RuleList(netlink.FAMILY_V4) })
}

// ropewalkProtocol marks the agent's rules, which lead to its table.
const (
	ropewalkProtocol = 82
	ropewalkTable    = 8282
)

// ruled reports whether the agent's rule exists.
func (n *node) ruled() (yes bool) {
	n.l.Helper()
	expect.NoError(n.l, n.host.Do(func() error {
		rules, err := rulesIPv4()
		for _, r := range rules {
			yes = yes || r.Protocol == ropewalkProtocol
		}
		return err
	}))
	return yes
}

func TestTunnelsSurviveAPIOutageUnderLoad(t *testing.T) {
	l, pods := newMesh(t, 2)
	l.reach(pods)
	b := l.burden("API server unreachable", pods[0], pods[1])
	b.carries()
	before := l.changes()
	l.door.lock()
	time.Sleep(*away) // the test waits for nothing to happen
	b.carries()
	if after := l.changes(); !slices.Equal(after, before) {
		t.Errorf("agents made %v changes, %v before the outage", after, before)
	}
	l.door.unlock()
	b.carries()
	n := l.nodes[1]
	expect.EventuallyNoError(l, "the agent follows the cluster again", func() error {
		l.setMesh(map[string]any{"pools": []any{map[string]any{"mtu": int64(1400)}}})
		st, err := l.status(n.name)
		if err == nil && st.MTU != 1400 {
			err = fmt.Errorf("the MTU is %d", st.MTU)
		}
		return err
	})
	b.finish()
}

// changes returns the change counters of all agents.
func (l *lab) changes() (all []int) {
	l.Helper()
	for _, n := range l.nodes {
		made := n.gauge("changes_total")
		if made < 1 {
			l.Errorf("%s counts %d changes, and has a tunnel", n.name, made)
		}
		all = append(all, made)
	}
	return all
}

func TestAgentRestartDuringAPIOutageUnderLoad(t *testing.T) {
	l, pods := newMesh(t, 2)
	l.reach(pods)
	e := l.eavesdrop()
	n := l.nodes[1]
	b := l.burden("agent killed and restarted while the API server is unreachable", pods[0], pods[1])
	b.carries()
	l.door.lock()
	n.kill()
	n.startMesh()
	n.shows("ropewalk_agent_reconciles_total ")
	b.carries()
	if reconciles := n.gauge("reconciles_total"); reconciles != 0 {
		t.Errorf("the API was reached %d times", reconciles)
	}
	l.door.unlock()
	expect.EventuallyNoError(l, "it has reached the API", func() error {
		if n.gauge("peers") != 1 {
			return errors.New("not yet")
		}
		return nil
	})
	b.finish()
	e.stop(l)
	if log := n.agent.log.String(); strings.Contains(log, "tunnel configured") || strings.Contains(log, "peers changed") {
		t.Errorf("the agent changed the tunnel when it reached the API:\n%s", log)
	}
}

func TestLostObjectsKeepPeers(t *testing.T) {
	l, pods := newMesh(t, 2)
	l.reach(pods)
	before := map[string]string{}
	for _, n := range l.nodes {
		before[n.name] = n.agent.log.String()
	}
	b := l.burden("all objects of agents are deleted", pods[0], pods[1])
	b.carries()
	for _, r := range []schema.GroupVersionResource{rwnodes, rwannouncements} {
		expect.NoError(l, l.dynamic.Resource(r).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	}
	l.awaitStatus("agents make them anew", func(st published) bool { return st.PublicKey != "" })
	b.finish()
	for _, n := range l.nodes {
		if after := n.agent.log.String()[len(before[n.name]):]; strings.Contains(after, "peers changed") || strings.Contains(after, "tunnel configured") {
			t.Errorf("%s: got %s, want no %q in it", n.name, after, "peers changed")
		}
	}
}

func TestKeyChangesUnderLoad(t *testing.T) {
	l, pods := newMesh(t, 3)
	l.reach(pods)
	e := l.eavesdrop()
	n := l.nodes[1]
	out, in := l.burden("the sender's key changes", pods[1], pods[0]), l.burden("the receiver's key changes", pods[2], pods[1])
	for generation := int64(2); generation <= 3; generation++ {
		before, err := l.status(n.name)
		expect.NoError(l, err)
		out.carries()
		in.carries()
		expect.NoError(l, n.ask(map[string]any{"keyGeneration": generation}))
		expect.EventuallyNoError(l, "another key", func() error {
			st, err := l.status(n.name)
			if err == nil && (st.PublicKey == before.PublicKey || st.KeyGeneration != generation || st.NextPublicKey != "") {
				err = fmt.Errorf("of generation %d, next %q", st.KeyGeneration, st.NextPublicKey)
			}
			return err
		})
	}
	out.carries()
	in.carries()
	for _, o := range []*node{l.nodes[0], l.nodes[2]} {
		expect.EventuallyNoError(l, o.name+" forgets the old key", func() error {
			if peers := o.gauge("peers"); peers != 2 {
				return fmt.Errorf("it has %d peers", peers)
			}
			return nil
		})
	}
	out.finish()
	in.finish()
	l.reach(pods)
	e.stop(l)
	if names, err := os.ReadDir(n.keys); err != nil || !slices.ContainsFunc(names, func(d os.DirEntry) bool { return d.Name() == "private-3.key" }) ||
		slices.ContainsFunc(names, func(d os.DirEntry) bool { return d.Name() == "private.key" || d.Name() == "private-2.key" }) {
		t.Errorf("the old keys are kept: got %v, error %v, want no error", names, err)
	}
	n.stop()
	n.startMesh()
	l.reach(pods)
}

func TestConnectionsSurviveAgentKillAndUpgrade(t *testing.T) {
	l, pods := newMesh(t, 2)
	l.reach(pods)
	e := l.eavesdrop()
	n := l.nodes[1]
	b := l.burden("agent killed and restarted", pods[0], pods[1])
	b.carries()
	n.kill()
	n.startMesh()
	b.finish()
	b = l.burden("agent upgraded", pods[0], pods[1])
	b.carries()
	n.stop()
	n.startMesh()
	b.finish()
	e.stop(l)
}

// logs waits for a text in the log of a process.
func (l *lab) logs(a *agent, text string) {
	l.Helper()
	expect.EventuallyNoError(l, "the log has: "+text, func() error {
		if !strings.Contains(a.log.String(), text) {
			return errors.New("not logged")
		}
		return nil
	})
}

// TestConnectionsSurviveEngineUpdate is a rolling update with maxSurge: the new engine starts while the old one runs. The agent need not know.
func TestConnectionsSurviveEngineUpdate(t *testing.T) {
	l, pods := newMesh(t, 2)
	l.reach(pods)
	e := l.eavesdrop()
	n := l.nodes[1]
	b := l.burden("engine replaced by one that starts beside it", pods[0], pods[1])
	b.carries()
	old := n.engine
	n.startEngine()
	l.logs(old, "another process has taken the tunnel over")
	b.carries()
	old.end()
	b.finish()

	b = l.burden("engine stopped while its agent is away, and started again", pods[0], pods[1])
	b.carries()
	n.stop()
	n.stopEngine()
	n.startEngine()
	b.carries()
	n.startMesh()
	b.finish()
	l.reach(pods)
	e.stop(l)
	l.awaitStatus("one is the peer of the other", func(st published) bool { return st.Peers == 1 })
	if log := n.agent.log.String(); strings.Contains(log, "tunnel configured") {
		t.Errorf("the engine did not start with its configuration:\n%s", log)
	}
}

// TestAgentOfOtherModeDoesNotStart: routes of the mesh would stay, and drop packets.
func TestAgentOfOtherModeDoesNotStart(t *testing.T) {
	bpf := mountBPF(t)
	l, pods := newMesh(t, 2)
	l.reach(pods)
	n := l.nodes[1]
	n.stop()
	n.startSpread(bpf)
	<-n.agent.done
	if log := n.agent.log.String(); !strings.Contains(log, "the node has the state of an agent in mode mesh: run the cleanup") {
		t.Errorf("the agent of mode spread ended with:\n%s", log)
	}
	l.reach(pods)
}

func TestAgentWritesOnlyItsOwnNode(t *testing.T) {
	l := newLab(t, 2)
	for _, n := range l.nodes {
		n.startMesh()
	}
	l.awaitStatus("both nodes to publish a key", func(st published) bool { return st.PublicKey != "" })
	l.hostile(l.nodes[0].name, l.nodes[1].name)
}
