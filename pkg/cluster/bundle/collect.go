// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"
)

// selected is the query for the pods of agents and engines.
var selected = "?labelSelector=" + url.QueryEscape("app.kubernetes.io/name in (ropewalk-spread,ropewalk-mesh,ropewalk-engine)")

// within returns the part of an API path for a namespace, or for all of them.
func within(namespace string) string {
	if namespace == "" {
		return "/"
	}
	return "/namespaces/" + url.PathEscape(namespace) + "/"
}

// engineName is the label of engines' pods.
const engineName = "ropewalk-engine"

// pod has what is read of a Pod.
type pod struct {
	Metadata struct {
		Name, Namespace string
		Labels          map[string]string
	}
	Spec struct {
		NodeName   string
		Containers []container
	}
	Status struct {
		Phase             string
		ContainerStatuses []struct {
			Name         string
			RestartCount int
		}
	}
}

type container struct {
	Name string
	Args []string
	Env  []struct{ Name, Value string }
}

// isEngine reports whether the pod runs a tunnel.
func (p *pod) isEngine() bool { return p.Metadata.Labels["app.kubernetes.io/name"] == engineName }

// restarted returns how often a container was restarted.
func (p *pod) restarted(container string) int {
	for _, s := range p.Status.ContainerStatuses {
		if s.Name == container {
			return s.RestartCount
		}
	}
	return 0
}

// program returns the container of the agent or engine. Others are administrators' own.
func (p *pod) program() *container {
	for i, c := range p.Spec.Containers {
		if c.Name == "agent" || c.Name == "engine" {
			return &p.Spec.Containers[i]
		}
	}
	return &container{Name: "agent"}
}

// metricsAddress returns the address at which the container serves metrics, or "". It may be in a variable.
func (c *container) metricsAddress() string {
	for _, arg := range c.Args {
		name, value, _ := strings.Cut(arg, "=")
		if name != "--listen" && name != "--metrics" {
			continue
		}
		for _, e := range c.Env {
			value = strings.ReplaceAll(value, "$("+e.Name+")", e.Value)
		}
		return value
	}
	return ""
}

// group is where ropewalk's objects are.
const group = "/apis/ropewalk.io/v1alpha1"

// collectCluster adds the objects of the cluster and the caller's files, and returns the pods of agents and engines.
func (c Config) collectCluster(ctx context.Context, a *archive) []pod {
	for _, f := range c.Files {
		bounded, cancel := c.bound(ctx)
		data, err := f.Make(bounded)
		a.add(f.Name, data, err)
		cancel()
	}
	get := func(name, path string) []byte {
		data, err := c.kubectl(ctx, "get", "--raw", path)
		a.add(name, trimObjects(data), err)
		return data
	}
	get("objects/nodes.json", "/api/v1/nodes")
	get("objects/daemonsets.json", "/apis/apps/v1"+within(c.Namespace)+"daemonsets"+selected)
	get("objects/events.json", "/api/v1/events?fieldSelector="+url.QueryEscape("involvedObject.apiVersion=ropewalk.io/v1alpha1"))
	var kinds struct{ Resources []struct{ Name string } }
	_ = json.Unmarshal(get("objects/resources.json", group), &kinds) // the error is in the index
	for _, k := range kinds.Resources {
		if !strings.Contains(k.Name, "/") {
			get("objects/"+k.Name+".json", group+"/"+k.Name)
			get("objects/crd-"+k.Name+".json", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"+k.Name+".ropewalk.io")
		}
	}
	var pods struct{ Items []pod }
	_ = json.Unmarshal(get("objects/pods.json", "/api/v1"+within(c.Namespace)+"pods"+selected), &pods)
	if len(pods.Items) == 0 {
		a.add("nodes", nil, errors.New("there are no pods of agents or engines, or they cannot be listed"))
	}
	for _, namespace := range namespaces(pods.Items) {
		get("objects/events-"+namespace+".json", "/api/v1/namespaces/"+namespace+"/events")
	}
	return pods.Items
}

func namespaces(pods []pod) (all []string) {
	seen := map[string]bool{}
	for _, p := range pods {
		if n := p.Metadata.Namespace; !seen[n] {
			seen[n], all = true, append(all, n)
		}
	}
	return all
}

func (c Config) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, c.Timeout, silentError{c.Timeout})
}

// silentError is the reason for the end of a command that got no answer.
type silentError struct{ timeout time.Duration }

func (e silentError) Error() string { return fmt.Sprintf("no answer within %v", e.timeout) }

func (c Config) kubectl(ctx context.Context, args ...string) ([]byte, error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	return c.Kubectl.Output(ctx, args...)
}

// nodeFiles collects the files of one node. A node that did not answer once is asked for nothing more.
type nodeFiles struct {
	Config
	ctx     context.Context
	archive *archive
	node    string
	silent  error
	count   Summary
}

func (c Config) collectNode(ctx context.Context, a *archive, n nodePods) Summary {
	f := &nodeFiles{Config: c, ctx: ctx, archive: a, node: n.node}
	runner := withTunnel(n.pods)
	for i := range n.pods {
		f.collectLogs(&n.pods[i])
		f.collectMetrics(&n.pods[i])
	}
	f.exec(runner, "show.json", "show", "--json", "--lanes")
	f.exec(runner, "doctor.json", "doctor", "--json")
	return f.count
}

// withTunnel returns the pod of a node that sees its tunnel: the running engine's, or the agent's if the host runs the engine.
func withTunnel(pods []pod) *pod {
	best := &pods[0]
	for i := range pods {
		if p := &pods[i]; p.isEngine() && (!best.isEngine() || p.Status.Phase == "Running") {
			best = p
		}
	}
	return best
}

// ExecArgs returns the arguments of kubectl up to the program that it runs in the pod of a node that sees its tunnel.
func ExecArgs(ctx context.Context, k Kubectl, namespace, node string) ([]string, error) {
	out, err := k.Output(ctx, "get", "--raw", "/api/v1"+within(namespace)+"pods"+selected+"&fieldSelector="+url.QueryEscape("spec.nodeName="+node))
	if err != nil {
		return nil, err
	}
	var pods struct{ Items []pod }
	if err := json.Unmarshal(out, &pods); err != nil {
		return nil, fmt.Errorf("reading the pods of the node %s: %w", node, err)
	}
	if len(pods.Items) == 0 {
		return nil, fmt.Errorf("the node %s has no pod of an agent or engine", node)
	}
	return withTunnel(pods.Items).execArgs(), nil
}

func (p *pod) execArgs() []string {
	return []string{"exec", "--namespace=" + p.Metadata.Namespace, p.Metadata.Name, "--container=" + p.program().Name, "--"}
}

// add adds what a function returns.
func (f *nodeFiles) add(name string, collect func(context.Context) ([]byte, error)) {
	err := f.silent
	var data []byte
	if err == nil {
		ctx, cancel := f.bound(f.ctx)
		data, err = collect(ctx)
		cancel()
	}
	if silent, ok := errors.AsType[silentError](err); ok {
		f.silent = fmt.Errorf("not tried, since the node gave %w before", silent)
	}
	f.count.count(err != nil)
	f.archive.add(path.Join("nodes", f.node, name), data, err)
}

// maxLog bounds a log, in bytes.
const maxLog = 32 << 20

func (f *nodeFiles) collectLogs(p *pod) {
	for _, c := range p.Spec.Containers {
		args := []string{
			"logs", "--namespace=" + p.Metadata.Namespace, p.Metadata.Name, "--container=" + c.Name, "--timestamps",
			"--tail=" + strconv.Itoa(f.LogLines), "--limit-bytes=" + strconv.Itoa(maxLog),
		}
		logs := func(name string, args []string) {
			f.add(path.Join(p.Metadata.Name, name), func(ctx context.Context) ([]byte, error) { return f.Kubectl.Output(ctx, args...) })
		}
		logs(c.Name+".log", args)
		if p.restarted(c.Name) > 0 {
			logs(c.Name+"-previous.log", append(args, "--previous"))
		}
	}
}

func (f *nodeFiles) collectMetrics(p *pod) {
	host, port, err := net.SplitHostPort(p.program().metricsAddress())
	if err != nil {
		return // not served
	}
	f.add(path.Join(p.Metadata.Name, "metrics.txt"), func(ctx context.Context) ([]byte, error) {
		if ip := net.ParseIP(host); ip != nil && ip.IsLoopback() {
			return f.Kubectl.Forwarded(ctx, p.Metadata.Namespace, p.Metadata.Name, port, "/metrics")
		}
		return f.Kubectl.Output(ctx, "get", "--raw", "/api/v1/namespaces/"+p.Metadata.Namespace+"/pods/"+p.Metadata.Name+":"+port+"/proxy/metrics")
	})
}

// exec runs ropewalk in a pod. Exit codes 3 and 4 are findings.
func (f *nodeFiles) exec(p *pod, name string, args ...string) {
	f.add(name, func(ctx context.Context) ([]byte, error) {
		data, err := f.Kubectl.Output(ctx, append(append(p.execArgs(), "ropewalk"), args...)...)
		if coded, ok := errors.AsType[interface {
			error
			ExitCode() int
		}](err); ok && (coded.ExitCode() == 3 || coded.ExitCode() == 4) {
			err = nil
		}
		return data, err
	})
}
