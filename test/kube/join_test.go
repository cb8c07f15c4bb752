// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ropewalk/ropewalk/test/expect"
)

const joiners = 200

// joinerProgram builds the program that runs agents without hosts.
var joinerProgram = sync.OnceValues(func() (string, error) { return build("./test/joiners") })

// crowd is a set of joining nodes whose agents run in one process.
type crowd struct {
	*api
	dir     string
	names   []string
	door    *door
	others  int // nodes whose agents run elsewhere, or are pretended
	to      io.WriteCloser
	answers *bufio.Scanner
}

// joined has the counters of one agent.
type joined struct {
	Name                                      string
	Peers, Added, Removed, Writes, Reconciles int

	OwnHeartbeats, OtherHeartbeats int // in watches
}

func (a *api) newCrowd() *crowd {
	a.Helper()
	a.setMesh(map[string]any{"cleartext": "Auto", "podCIDRs": []any{"10.0.0.0/8"}})
	bin, err := joinerProgram()
	expect.NoError(a, err)
	c := &crowd{api: a, dir: a.TempDir()}
	expect.NoError(a, os.WriteFile(filepath.Join(c.dir, "ca"), a.cfg.CAData, 0o600))
	c.door = a.newDoor(func() (net.Listener, error) {
		return new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	})
	cmd := exec.Command(bin, "-server", "https://"+c.door.l.Addr().String(), "-dir", c.dir)
	cmd.Stderr = os.Stderr
	c.to, err = cmd.StdinPipe()
	expect.NoError(a, err)
	from, err := cmd.StdoutPipe()
	expect.NoError(a, err)
	c.answers = bufio.NewScanner(from)
	c.answers.Buffer(nil, 1<<20)
	expect.NoError(a, cmd.Start())
	a.Cleanup(func() {
		c.to.Close()
		_ = cmd.Wait()
	})
	return c
}

// join adds n nodes that no agent knows yet.
func (c *crowd) join(n int) (names []string) {
	c.Helper()
	for range n {
		names = append(names, fmt.Sprintf("joiner-%d", len(c.names)+len(names)))
	}
	first := len(c.names)
	c.names = append(c.names, names...)
	errs := make([]error, n)
	var all sync.WaitGroup
	for w := range 8 {
		all.Go(func() {
			for i := w; i < n; i += 8 {
				errs[i] = c.create(names[i], first+i)
			}
		})
	}
	all.Wait()
	expect.NoError(c, errors.Join(errs...))
	return names
}

func (c *crowd) create(name string, i int) error {
	pods := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(1 + i>>8), byte(i), 0}), 24).String()
	nodes := c.clients.CoreV1().Nodes()
	made, err := nodes.Create(c.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDR: pods, PodCIDRs: []string{pods}},
	}, metav1.CreateOptions{})
	if err == nil {
		addr := netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)}).String()
		made.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: addr}}
		_, err = nodes.UpdateStatus(c.Context(), made, metav1.UpdateOptions{})
	}
	if err != nil {
		return err
	}
	token, err := c.askNodeToken(name)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(c.dir, name), []byte(token), 0o600)
}

func (c *crowd) begin(names []string) {
	c.Helper()
	for _, name := range names {
		_, err := fmt.Fprintln(c.to, "begin "+name)
		expect.NoError(c, err)
	}
}

func (c *crowd) report() (all []joined) {
	c.Helper()
	_, err := fmt.Fprintln(c.to, "report")
	expect.NoError(c, err)
	if !c.answers.Scan() {
		c.Fatal("the agents have ended", c.answers.Err())
	}
	expect.NoError(c, json.Unmarshal(c.answers.Bytes(), &all))
	return all
}

// awaitFullMesh waits until each node has all others as peers, and returns the maxima of all agents' counters.
func (c *crowd) awaitFullMesh() (most joined) {
	c.Helper()
	var all []joined
	for quarter := range 4 { // one wait is too short for all
		want := (len(c.names) - 1 + c.others) * (quarter + 1) / 4
		expect.EventuallyNoError(c, fmt.Sprintf("all have %d peers", want), func() error {
			all = c.report()
			for _, j := range all {
				if j.Peers < want {
					return fmt.Errorf("%s has %d peers after %d reconciles and %d writes", j.Name, j.Peers, j.Reconciles, j.Writes)
				}
			}
			return nil
		})
	}
	for _, j := range all {
		if j.Added != len(c.names)-1+c.others || j.Peers != j.Added || j.Removed != 0 {
			c.Errorf("%s: got %+v, want each peer added once and none removed", j.Name, j)
		}
		most.Writes, most.Reconciles = max(most.Writes, j.Writes), max(most.Reconciles, j.Reconciles)
	}
	return most
}

// TestTwoHundredNodesJoinAtOnce checks that each agent adds each peer once and removes none, and that the number of its writes does
// not depend on the number of nodes.
func TestTwoHundredNodesJoinAtOnce(t *testing.T) {
	a := startAPI(t)
	t.Cleanup(a.clear)
	c := a.newCrowd()
	names := c.join(joiners)
	began := time.Now()
	c.begin(names)
	first := c.awaitFullMesh()
	took := time.Since(began)
	c.begin(c.join(1))
	second := c.awaitFullMesh()
	t.Logf("%d nodes joined in %s, and one more; an agent wrote at most %d and then %d times, and reconciled at most %d and then %d times",
		joiners, took.Round(100*time.Millisecond), first.Writes, second.Writes, first.Reconciles, second.Reconciles)
	// The dry runs of the start, the two objects, the note about cleartext that comes and goes, and repeatedly a peer count: at this size at most
	// every two seconds.
	if limit := 15 + int(time.Since(began)/(2*time.Second)); second.Writes > limit {
		t.Errorf("an agent wrote %d times, want at most %d", second.Writes, limit)
	}
}
