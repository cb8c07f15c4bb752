// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
)

// readerLab is the cluster of node a with a fake API.
type readerLab struct {
	*testing.T
	api     *fakeAPI
	k       *cluster
	changes chan struct{}
}

func newReaderLab(t *testing.T, period time.Duration, names ...string) *readerLab {
	t.Helper()
	l := &readerLab{T: t, api: newFakeAPI(), changes: make(chan struct{}, 1)}
	for i, name := range names {
		l.putNode(name, i+1)
	}
	s := httptest.NewServer(l.api.handler())
	t.Cleanup(s.Close)
	c, err := newClient(&rest.Config{Host: s.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	l.k, err = newCluster(c, "a", period, slog.New(slog.DiscardHandler), func() {
		select {
		case l.changes <- struct{}{}:
		default:
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (l *readerLab) start() {
	l.Helper()
	l.k.start(l.Context())
	if !cache.WaitForCacheSync(l.Context().Done(), l.k.synced) {
		l.Fatal("the informers did not sync")
	}
}

// putNode writes the Node with the address 192.0.2.i.
func (l *readerLab) putNode(name string, i int) {
	l.Helper()
	addr, pods := netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i), 0}), 24)
	if err := l.api.addNode(name, addr, pods); err != nil {
		l.Fatal(err)
	}
}

// claim writes the node's announcement as its agent does, with the address 192.0.2.i.
func (l *readerLab) claim(name string, i int) {
	l.Helper()
	o := object{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("announcement of " + name)}}
	o.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: name, UID: types.UID("node " + name)}}
	var err error
	o.Spec, err = json.Marshal(v1alpha1.AnnouncementSpec{
		Mode: v1alpha1.ModeMesh, Endpoints: []v1alpha1.Endpoint{v1alpha1.Endpoint(fmt.Sprintf("192.0.2.%d:51820", i))},
		PodCIDRs: []v1alpha1.CIDR{v1alpha1.CIDR(fmt.Sprintf("10.244.%d.0/24", i))},
	})
	if err != nil {
		l.Fatal(err)
	}
	l.api.announcements.put(o)
}

// until waits until the agent's view of the cluster meets a condition.
func (l *readerLab) until(what string, right func(map[string]mesh.Node) bool) {
	l.Helper()
	late := time.After(patience)
	for {
		all := map[string]mesh.Node{}
		for _, n := range l.k.all((*intent)(nil).excludes) {
			all[n.Name] = n
		}
		if right(all) {
			return
		}
		select {
		case <-l.changes:
		case <-late:
			l.Fatalf("waited for: %s; got %+v", what, all)
		}
	}
}

func hasAddr(n mesh.Node, i int) bool {
	return len(n.Addrs) == 1 && n.Addrs[0] == netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
}

// TestHeartbeatsOfOthersAreNotRead: the changed address of the own Node is written last, so that it arrives last.
func TestFailedReadNamesOneNodeAtMost(t *testing.T) {
	for want, object := range map[string][]any{"retrying\" error=gone\n": nil, "retrying\" node=b error=gone\n": {"node", "b"}} {
		var log bytes.Buffer
		w := &nodeWatch{nodeReader: newNodeReader(nil, "a", 0, slog.New(slog.NewTextHandler(&log, nil)))}
		w.report(t.Context(), errors.New("gone"), object...)
		if !strings.HasSuffix(log.String(), want) {
			t.Errorf("got %q, want the end %q", log.String(), want)
		}
	}
}

func TestHeartbeatsOfOthersAreNotRead(t *testing.T) {
	l := newReaderLab(t, time.Hour, "a", "b", "c")
	l.claim("b", 2)
	l.start()
	l.until("all nodes", func(all map[string]mesh.Node) bool { return len(all) == 3 && all["b"].Agent != nil })
	before := l.api.nodeReads.Load()
	for range 50 {
		l.putNode("b", 2)
		l.putNode("c", 3)
	}
	l.putNode("a", 9)
	l.until("the own Node's address", func(all map[string]mesh.Node) bool { return hasAddr(all["a"], 9) })
	if reads := l.api.nodeReads.Load() - before; reads != 0 {
		t.Errorf("%d requests for Nodes", reads)
	}
}

// TestNodeIsReadWhenItsAgentClaimsOther: the agent of a node publishes what its Node has now.
func TestNodeIsReadWhenItsAgentClaimsOther(t *testing.T) {
	l := newReaderLab(t, time.Hour, "a", "b", "c")
	l.k.reader.minInterval = time.Millisecond
	l.claim("b", 2)
	l.claim("c", 3)
	l.start()
	l.until("all nodes", func(all map[string]mesh.Node) bool {
		return hasAddr(all["b"], 2) && all["b"].Agent != nil && all["c"].Agent != nil
	})
	l.putNode("d", 4)
	l.claim("d", 4)
	l.until("a new node", func(all map[string]mesh.Node) bool { return hasAddr(all["d"], 4) && all["d"].Agent != nil })
	l.claim("e", 5) // without a Node
	l.putNode("b", 6)
	l.claim("b", 6)
	l.until("its new address", func(all map[string]mesh.Node) bool { return len(all) == 4 && hasAddr(all["b"], 6) })
	for i, name := range []string{"c", "d"} { // one was listed, the other read
		l.api.nodes.remove(name)
		l.api.announcements.remove(name) // as the garbage collector does
		l.until("the node is gone", func(all map[string]mesh.Node) bool { return len(all) == 3-i })
	}
	l.api.announcements.remove("b") // as an administrator does by mistake
	l.putNode("f", 7)
	l.claim("f", 7)
	l.until("only its announcement is gone", func(all map[string]mesh.Node) bool { return hasAddr(all["b"], 6) && hasAddr(all["f"], 7) })
}

// TestSettingsOfOthersAreReadWhenTheyMatter: an administrator sets, changes and removes the endpoint of node b. No agent watches its RopewalkNode.
func TestSettingsOfOthersAreReadWhenTheyMatter(t *testing.T) {
	for _, more := range []int{0, 3 * minRelist} { // one by one, and by a list
		l := newReaderLab(t, time.Hour, "a", "b", "c")
		l.k.reader.minInterval = time.Millisecond
		set := func(name, owner, endpoint string) {
			o := object{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("agent of " + name)}, Spec: json.RawMessage(`{"endpoint":"` + endpoint + `","port":7}`)}
			o.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: name, UID: types.UID("node " + owner)}}
			l.api.agents.put(o)
		}
		for i := range more {
			name := fmt.Sprint("n", i)
			l.putNode(name, 100+i)
			set(name, name, fmt.Sprint("192.0.2.", 100+more+i))
			l.claim(name, 100+more+i)
			l.moveClaim(name, 100+i)
		}
		set("b", "b", "192.0.2.66")
		l.claim("b", 66)
		l.moveClaim("b", 2)
		set("c", "an earlier c", "192.0.2.67")
		l.claim("c", 67)
		l.start()
		at := func(name string, i int) func(map[string]mesh.Node) bool {
			return func(all map[string]mesh.Node) bool {
				n := all[name]
				return n.Agent != nil && (i == 0 && !n.Endpoint.IsValid() || n.Endpoint == netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}) && n.Port == 7)
			}
		}
		l.until("the endpoint", at("b", 66))
		for i := range more {
			l.until("each endpoint", at(fmt.Sprint("n", i), 100+more+i))
		}
		l.until("settings of another node are ignored", at("c", 0))
		o, _ := l.api.agents.get("b")
		o.Spec = json.RawMessage(`{"endpoint":"192.0.2.66","port":8}`)
		l.api.agents.put(o)
		o, _ = l.api.announcements.get("b")
		o.Spec = bytes.Replace(o.Spec, []byte(":51820"), []byte(":8"), 1)
		l.api.announcements.put(o)
		l.until("the new port", func(all map[string]mesh.Node) bool { return all["b"].Port == 8 })
		set("b", "b", "192.0.2.68")
		l.claim("b", 68)
		l.moveClaim("b", 2)
		l.until("the new endpoint", at("b", 68))
		l.api.agents.remove("b")
		l.claim("b", 2)
		l.until("no endpoint", at("b", 0))
	}
}

// moveClaim makes a node's announcement claim the pods of the Node with the address 192.0.2.i.
func (l *readerLab) moveClaim(name string, i int) {
	l.Helper()
	o, _ := l.api.announcements.get(name)
	var s v1alpha1.AnnouncementSpec
	err := json.Unmarshal(o.Spec, &s)
	s.PodCIDRs = []v1alpha1.CIDR{v1alpha1.CIDR(fmt.Sprintf("10.244.%d.0/24", i))}
	if err == nil {
		o.Spec, err = json.Marshal(s)
	}
	if err != nil {
		l.Fatal(err)
	}
	l.api.announcements.put(o)
}

// TestFirstListWaitsForAnnouncements, without which it would leave out the settings of all Nodes.
func TestFirstListWaitsForAnnouncements(t *testing.T) {
	l := newReaderLab(t, time.Hour, "a", "b")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.k.reader.ListWithContext(ctx, metav1.ListOptions{}); !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "listing") {
		t.Errorf("got %v, want the end of the wait", err)
	}
}

// TestSurveyTimeSurvivesClockSteps: a clock that is set back by hours after the boot must not delay the end of cleartext by as much.
func TestSurveyTimeSurvivesClockSteps(t *testing.T) {
	r := &nodeReader{}
	if r.recordList(&nodeList{}, time.Now()); !strings.Contains(r.asOf().String(), " m=") {
		t.Errorf("%s has no reading of the monotonic clock", r.asOf())
	}
}

func TestSurveyFindsNodesWithoutAgents(t *testing.T) {
	l := newReaderLab(t, time.Millisecond, "a", "b")
	l.start()
	l.until("both nodes", func(all map[string]mesh.Node) bool { return len(all) == 2 })
	l.putNode("c", 3)
	l.until("a new node", func(all map[string]mesh.Node) bool { return hasAddr(all["c"], 3) })
	l.api.nodes.remove("b")
	l.until("a node is gone", func(all map[string]mesh.Node) bool { return len(all) == 2 && hasAddr(all["c"], 3) })
	for i := range 2 * minRelist {
		l.putNode(fmt.Sprintf("n%d", i), 10+i)
	}
	l.api.nodes.remove("c")
	l.until("many changes at once", func(all map[string]mesh.Node) bool { return len(all) == 1+2*minRelist && hasAddr(all["n1"], 11) })
	l.putNode("n1", 3)
	l.until("each Node is read in turn", func(all map[string]mesh.Node) bool { return hasAddr(all["n1"], 3) })
}

// TestFalseClaimsAreReadOnce: a compromised node must not make all others read all the time.
func TestFalseClaimsAreReadOnce(t *testing.T) {
	l := newReaderLab(t, time.Hour, "a", "b")
	r := l.k.reader
	r.lastReads, r.minInterval = map[string]nodeRead{}, time.Hour // more than any machine is slow
	w := &nodeWatch{nodeReader: r, events: make(chan watch.Event, 10)}
	b := &node{ObjectMeta: metav1.ObjectMeta{Name: "b", UID: "node b"}}
	b.Status.Addresses = []nodeAddress{{Type: internalIP, Address: "192.0.2.2"}}
	ra := &v1alpha1.RopewalkAnnouncement{ObjectMeta: metav1.ObjectMeta{Name: "b"}}
	ra.OwnerReferences = []metav1.OwnerReference{ownerReference(b)}
	if err := r.nodes.GetStore().Add(b); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		what  string
		claim v1alpha1.Endpoint // "": none
		pass  time.Duration     // since the last read
		reads int64
	}{
		{"no status yet", "", 0, 0},
		{"the Node's address", "192.0.2.2:51820", 0, 0},
		{"another's address", "192.0.2.1:51820", time.Hour, 1},
		{"the same claim", "192.0.2.1:51820", time.Hour, 0},
		{"a new claim at once", "192.0.2.7:51820", 0, 0},
		{"a new claim later", "192.0.2.7:51820", time.Hour, 1},
		{"another port", "192.0.2.7:1", time.Hour, 1},
	} {
		ra = ra.DeepCopy()
		ra.Spec = v1alpha1.AnnouncementSpec{}
		if step.claim != "" {
			ra.Spec = v1alpha1.AnnouncementSpec{Mode: v1alpha1.ModeMesh, Endpoints: []v1alpha1.Endpoint{step.claim}}
		}
		if err := r.agents.GetStore().Add(ra); err != nil {
			t.Fatal(err)
		}
		if last, read := r.lastReads["b"]; read {
			r.lastReads["b"] = nodeRead{time.Now().Add(-step.pass), last.claim}
		}
		before := l.api.nodeReads.Load()
		r.request("b")
		w.readRequested(t.Context())
		if reads := l.api.nodeReads.Load() - before; reads != step.reads {
			t.Errorf("%s: %d reads, want %d", step.what, reads, step.reads)
		}
	}
}
