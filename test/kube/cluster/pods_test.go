// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"time"

	"github.com/ropewalk/ropewalk/test/expect"
)

// toolPort is the port of the test's servers.
const toolPort = "7"

// pod is a running server of testdata/pods.yaml, or a client.
type pod struct {
	c     *cluster
	node  *node
	name  string
	addrs []string // IPv4, IPv6
}

// applyPods creates the servers and waits for them.
func (c *cluster) applyPods() {
	c.Helper()
	c.kubectl("apply", "-f", "test/kube/cluster/testdata/pods.yaml")
	c.kubectl("rollout", "status", "daemonset/tool", "--timeout=3m")
}

// pod returns the server on a node.
func (n *node) pod() *pod {
	n.c.Helper()
	p, err := n.findPod()
	expect.NoError(n.c, err)
	return p
}

func (n *node) findPod() (*pod, error) {
	out, err := n.c.try("kubectl", "get", "pod", "-l", "app=tool", "--field-selector=spec.nodeName="+n.name+",status.phase=Running",
		"-o", "jsonpath={.items[0].metadata.name} {.items[0].status.podIPs[*].ip}")
	if err != nil {
		return nil, err
	}
	f := strings.Fields(out)
	if len(f) != 1+len(n.pods) {
		return nil, fmt.Errorf("%s has no running server: %q", n.name, out)
	}
	p := &pod{c: n.c, node: n, name: f[0], addrs: f[1:]}
	if !n.hasOwnAddresses(p) {
		return nil, fmt.Errorf("the server on %s has been started on another machine: %q", n.name, out)
	}
	return p, nil
}

// dial exchanges a megabyte with a server and returns its host's name, and the address that it sees.
func (p *pod) dial(addr string) (server, seen string, err error) {
	out, err := p.c.try("kubectl", "exec", p.name, "--", "/pod", "dial", net.JoinHostPort(addr, toolPort))
	if err != nil {
		return "", "", err
	}
	f := strings.Fields(out)
	if len(f) != 2 {
		return "", "", fmt.Errorf("%s answers %q", addr, out)
	}
	return f[0], f[1], nil
}

// reaches fails the test unless the pod soon reaches a server, which must see the pod's own address.
func (p *pod) reaches(to *pod) {
	p.c.Helper()
	expect.EventuallyNoError(p.c, p.name+" reaches "+to.name, func() error { return p.tryToReach(to) })
}

// tryToReach connects to all addresses of a server.
func (p *pod) tryToReach(to *pod) error {
	for i, addr := range to.addrs {
		server, seen, err := p.dial(addr)
		if err == nil && (server != to.name || seen != p.addrs[i]) {
			err = fmt.Errorf("got server %s and client %s, want %s and %s", server, seen, to.name, p.addrs[i])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// probeTimeout bounds a probe, and with it the waits for its lines. It is longer than any step.
const probeTimeout = 10 * time.Minute

// probe is traffic between two pods while something happens.
type probe struct {
	c      *cluster
	cmd    *exec.Cmd
	stdin  io.Closer
	stdout *bufio.Reader
	stderr bytes.Buffer
	cancel context.CancelFunc
}

// probeResult is what test/kube/cluster/pod prints.
type probeResult struct {
	Sent, Received int
	Gaps           []probeGap
	Paused         time.Duration
	TCP            string
}

type probeGap struct {
	Lost          int
	Began, Lasted time.Duration
}

func (g probeGap) String() string {
	return fmt.Sprintf("%d in %v from %v", g.Lost, g.Lasted.Round(100*time.Microsecond), g.Began.Round(time.Millisecond))
}

func (r probeResult) String() string {
	return fmt.Sprintf("%d of %d datagrams lost, longest first: %v; longest time between two datagrams %v", r.Sent-r.Received, r.Sent, r.Gaps, r.Paused)
}

// The times between two datagrams of a probe: seldom while a step waits for minutes, and often where gaps are measured.
const (
	seldom = 10 * time.Millisecond
	often  = time.Millisecond
)

// probe starts traffic, and returns once it flows.
func (p *pod) probe(to *pod, every time.Duration) *probe {
	p.c.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	r := &probe{c: p.c, cancel: cancel}
	p.c.Cleanup(cancel)
	r.cmd = p.c.prepare(ctx, "kubectl", "exec", "-i", p.name, "--", "/pod", "probe", net.JoinHostPort(to.addrs[0], toolPort), every.String())
	r.cmd.Stderr = &r.stderr
	var err error
	r.stdin, err = r.cmd.StdinPipe()
	expect.NoError(p.c, err)
	stdout, err := r.cmd.StdoutPipe()
	expect.NoError(p.c, err)
	r.stdout = bufio.NewReader(stdout)
	expect.NoError(p.c, r.cmd.Start())
	r.await("answered")
	return r
}

// flows waits until traffic flows again after an interruption.
func (r *probe) flows() {
	r.c.Helper()
	r.await("answered") // perhaps before the interruption
	r.await("answered")
}

// await returns the next line that begins with a text.
func (r *probe) await(begin string) string {
	r.c.Helper()
	for {
		line, err := r.stdout.ReadString('\n')
		if err != nil {
			_ = r.cmd.Wait()
			r.c.Fatalf("waiting for %q of the traffic: %v\n%s", begin, err, &r.stderr)
		}
		if strings.HasPrefix(line, begin) {
			return line
		}
	}
}

// end ends the traffic. The connection that was open all the time must still work.
func (r *probe) end() probeResult {
	r.c.Helper()
	defer r.cancel()
	expect.NoError(r.c, r.stdin.Close())
	var result probeResult
	expect.NoError(r.c, json.Unmarshal([]byte(r.await("{")), &result))
	_ = r.cmd.Wait()
	if result.TCP != "" {
		r.c.Errorf("the connection broke: %s", result.TCP)
	}
	return result
}

// endWithoutLoss is end of traffic that no datagram may be missing from.
func (r *probe) endWithoutLoss() probeResult {
	r.c.Helper()
	result := r.end()
	if result.Received != result.Sent {
		r.c.Errorf("packets were lost: %v", result)
	}
	return result
}
