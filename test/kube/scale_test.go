// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/ropewalk/ropewalk/test/expect"
)

// `make kube-scale ARGS="-scale-nodes 5000 -scale-agents 20 -scale-window 10m"` prints figures. Without a window, the test only checks
// that nothing is sent that need not be.
var (
	scaleNodes  = flag.Int("scale-nodes", 50, "TestScale's number of nodes")
	scaleAgents = flag.Int("scale-agents", 3, "how many of them have an agent that runs")
	scaleWindow = flag.Duration("scale-window", 0, "how long the cluster is measured at rest; 0: not at all")
)

// heartbeatPeriod is how often a kubelet writes an unchanged Node (nodeStatusReportFrequency).
const heartbeatPeriod = 5 * time.Minute

// population is a cluster of which most nodes are only objects.
type population struct {
	*crowd
	nodes  kubernetes.Interface
	agents dynamic.Interface
	inert  []string
}

func newPopulation(a *api) *population {
	a.Helper()
	cfg := rest.CopyConfig(a.cfg)
	cfg.QPS = -1
	agents := dynamic.NewForConfigOrDie(cfg)
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	return &population{crowd: a.newCrowd(), nodes: kubernetes.NewForConfigOrDie(cfg), agents: agents}
}

// each calls a function with the numbers from 0 to n-1.
func (p *population) each(n int, do func(i int) error) {
	p.Helper()
	errs := make([]error, n)
	var all sync.WaitGroup
	const workers = 16
	for w := range workers {
		all.Go(func() {
			for i := w; i < n; i += workers {
				errs[i] = do(i)
			}
		})
	}
	all.Wait()
	expect.NoError(p, errors.Join(errs...))
}

// populate adds n nodes with the status of an agent that does not run.
func (p *population) populate(n int) {
	p.Helper()
	first := len(p.inert)
	for i := range n {
		p.inert = append(p.inert, fmt.Sprintf("ip-10-1-%d-%d.eu-west-1.compute.internal", (first+i)>>8, (first+i)&255))
	}
	p.each(n, func(i int) error { return p.inertNode(p.inert[first+i], first+i) })
	p.others += n
}

func (p *population) inertNode(name string, i int) error {
	pods := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(100 + i>>8), byte(i), 0}), 24).String()
	addr := netip.AddrFrom4([4]byte{172, byte(20 + i>>16), byte(i >> 8), byte(i)}).String()
	made, err := p.nodes.CoreV1().Nodes().Create(p.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64", corev1.LabelTopologyZone: "eu-west-1a",
			corev1.LabelTopologyRegion: "eu-west-1", corev1.LabelInstanceTypeStable: "m5.4xlarge",
		}},
		Spec: corev1.NodeSpec{PodCIDR: pods, PodCIDRs: []string{pods}, ProviderID: "aws:///eu-west-1a/i-0123456789abcdef0"},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	made.Status = usualStatus(name, addr)
	if made, err = p.nodes.CoreV1().Nodes().UpdateStatus(p.Context(), made, metav1.UpdateOptions{}); err != nil {
		return err
	}
	return p.pretend(made, addr, pods)
}

// usualStatus is a Node's status of some ten kilobytes, most of which are its images.
func usualStatus(name, addr string) (st corev1.NodeStatus) {
	st.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: addr}, {Type: corev1.NodeHostName, Address: name}}
	for _, kind := range []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		st.Conditions = append(st.Conditions, corev1.NodeCondition{
			Type: kind, Status: corev1.ConditionTrue, Reason: "KubeletReason", Message: "kubelet has a message about it", LastHeartbeatTime: metav1.Now(),
		})
	}
	st.Capacity = corev1.ResourceList{"cpu": resource.MustParse("16"), "memory": resource.MustParse("64Gi"), "pods": resource.MustParse("110")}
	st.Allocatable = st.Capacity
	for i := range 50 { // the kubelet's nodeStatusMaxImages
		image := fmt.Sprintf("registry.example.com/some/project/image-%d", i)
		st.Images = append(st.Images, corev1.ContainerImage{Names: []string{fmt.Sprintf("%s@sha256:%064d", image, i), image + ":v1.2.3"}, SizeBytes: 1 << 27})
	}
	return st
}

// pretend writes a node's objects as its agent does.
func (p *population) pretend(n *corev1.Node, addr, pods string) error {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // it never fails
	return publish(p.Context(), p.agents, n, map[string]any{
		"mode": "mesh", "publicKey": base64.StdEncoding.EncodeToString(key), "keyGeneration": int64(1), "endpoints": []any{addr + ":51820"},
		"podCIDRs": []any{pods}, "mtu": int64(1440), "spreadPorts": map[string]any{"first": int64(61000), "last": int64(61999)},
		"peers": int64(100), "agentVersion": "0.1.0", "kernelVersion": "6.12.0",
		"conditions": []any{map[string]any{
			"type": "Ready", "status": "True", "reason": "Reconciled", "message": "", "lastTransitionTime": metav1.Now().UTC().Format(time.RFC3339),
		}},
	})
}

// heartbeat writes a Node's status as its kubelet does. The mark is what the agents' process counts.
func (p *population) heartbeat(ctx context.Context, name string) error {
	now := time.Now().UTC()
	patch := fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":"True","lastHeartbeatTime":%q,"message":"heartbeat-of-%s %s"}]}}`,
		now.Format(time.RFC3339), name, now.Format(time.RFC3339Nano))
	_, err := p.nodes.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	return err
}

// heartbeatsOfOthers has all kubelets write, those of the agents' nodes last, and expects each agent to receive its own node's alone.
func (p *population) heartbeatsOfOthers() {
	p.Helper()
	p.each(len(p.inert), func(i int) error { return p.heartbeat(p.Context(), p.inert[i]) })
	p.each(len(p.names), func(i int) error { return p.heartbeat(p.Context(), p.names[i]) })
	expect.EventuallyNoError(p, "each agent has the heartbeat of its node", func() error {
		for _, j := range p.report() {
			if j.OwnHeartbeats == 0 {
				return fmt.Errorf("%s has none", j.Name)
			}
		}
		return nil
	})
	for _, j := range p.report() {
		if j.OtherHeartbeats != 0 {
			p.Errorf("%s was sent %d heartbeats of other nodes", j.Name, j.OtherHeartbeats)
		}
	}
}

// TestScale has a cluster in which the agents of most nodes are pretended.
func TestScale(t *testing.T) {
	var a *api
	var host *node // of a process
	if *scaleWindow > 0 {
		l := newLab(t, 1)
		a, host = l.api, l.nodes[0]
	} else {
		a = startAPI(t)
		t.Cleanup(a.clear)
	}
	p := newPopulation(a)
	p.populate(*scaleNodes - *scaleAgents)
	began, sent := time.Now(), p.door.sent.Load()
	p.begin(p.join(*scaleAgents))
	p.awaitFullMesh()
	t.Logf("%d agents had %d peers after %s, and had read %.1f MB each", *scaleAgents, *scaleNodes-1, since(began),
		float64(p.door.sent.Load()-sent)/1e6/float64(*scaleAgents))
	p.heartbeatsOfOthers()
	if host != nil {
		p.atRest(*scaleWindow)
		p.process(host)
	}
	began = time.Now()
	p.populate(1)
	written := time.Now()
	p.awaitFullMesh()
	t.Logf("a new node was written in %s, and %s later it was a peer of all %d agents", written.Sub(began).Round(time.Millisecond), since(written), len(p.names))
	began = time.Now()
	p.begin(p.join(1))
	p.awaitFullMesh()
	t.Logf("a node whose agent starts was a peer of all, and had all peers, after %s", since(began))
}

func since(began time.Time) time.Duration { return time.Since(began).Round(10 * time.Millisecond) }

// atRest measures the traffic while only kubelets write, all of them.
func (p *population) atRest(window time.Duration) {
	p.Helper()
	all := append(append([]string{}, p.inert...), p.names...)
	ctx, cancel := context.WithCancel(p.Context())
	var beats sync.WaitGroup
	beats.Go(func() {
		t := time.NewTicker(heartbeatPeriod / time.Duration(len(all)))
		defer t.Stop()
		for i := 0; ctx.Err() == nil; i++ {
			<-t.C
			if err := p.heartbeat(ctx, all[i%len(all)]); err != nil && ctx.Err() == nil {
				p.Error(err)
			}
		}
	})
	time.Sleep(min(window/10, 30*time.Second)) // the traffic of the agents' start is over
	sent, writes, cpu := p.door.sent.Load(), p.writes(), cpuTime()
	time.Sleep(window)
	perAgent := float64(p.door.sent.Load()-sent) / window.Seconds() / float64(len(p.names))
	writeRate := float64(p.writes()-writes) / window.Seconds()
	cpu = cpuTime() - cpu
	cancel()
	beats.Wait()
	p.Logf("at rest, with %.1f heartbeats per second: %.0f bytes per second and agent, %.2f MB/s for %d agents; %.3f writes per second of %d agents; "+
		"API server, etcd and kubelets: %.2f CPUs", float64(len(all))/heartbeatPeriod.Seconds(), perAgent, perAgent*float64(len(all))/1e6, len(all),
		writeRate, len(p.names), cpu.Seconds()/window.Seconds())
}

func (p *population) writes() (sum int) {
	for _, j := range p.report() {
		sum += j.Writes
	}
	return sum
}

// cpuTime returns what this process has used.
func cpuTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// process starts an agent as a process, with an engine, and prints their memory.
func (p *population) process(n *node) {
	p.Helper()
	expect.NoError(p, n.host.Do(func() error { // the other nodes are not there
		link, err := netlink.LinkByName(n.device)
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: &net.IPNet{IP: net.IPv4(172, 16, 0, 0), Mask: net.CIDRMask(12, 32)}})
	}))
	sent, began := n.l.door.sent.Load(), time.Now()
	n.startMesh("--log-level", "info")
	p.others++
	want := len(p.names) + p.others - 1
	var took time.Duration
	expect.EventuallyNoError(p, "the process has all peers", func() error {
		if _, err := n.metrics(); err != nil {
			return err
		}
		if peers := n.gauge("peers"); peers != want {
			return fmt.Errorf("it has %d, want %d", peers, want)
		}
		took = since(began)
		return nil
	})
	p.awaitFullMesh()
	time.Sleep(*scaleWindow / 10)
	p.Logf("an agent's process had %d peers after %s and had read %.1f MB; memory: %s", want, took, float64(n.l.door.sent.Load()-sent)/1e6,
		memoryOf(n.agent.cmd.Process.Pid))
	first := n.engine.cmd.Process.Pid
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", first, first))
	expect.NoError(p, err)
	daemon, err := strconv.Atoi(strings.TrimSpace(string(children)))
	expect.NoError(p, err)
	p.Logf("its engine's memory: %s; that of the first process of its container: %s", memoryOf(daemon), memoryOf(first))
}

// memoryOf returns a process' resident memory, now and at its peak.
func memoryOf(pid int) string {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return err.Error()
	}
	var all []string
	for line := range strings.Lines(string(text)) {
		for _, field := range []string{"VmRSS:", "VmHWM:", "RssAnon:"} {
			if strings.HasPrefix(line, field) {
				all = append(all, strings.Join(strings.Fields(line), " "))
			}
		}
	}
	return strings.Join(all, ", ")
}
