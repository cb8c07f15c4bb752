// SPDX-License-Identifier: Apache-2.0

// Package bundle collects data for a report about a cluster's agents and engines,
// in one archive without secrets. It has objects, logs, metrics, and the output of `ropewalk show`
// and `ropewalk doctor`. It runs kubectl, which knows how to reach and authenticate to the cluster.
// Only cmd/ropewalk-agent imports it. Begin reading at Write.
//
// Not for other programs: it may change without notice.
package bundle

import (
	"cmp"
	"context"
	"io"
	"slices"
	"sync"
	"time"
)

// Config selects what is collected.
type Config struct {
	Kubectl   Kubectl
	Namespace string                 // of agents and engines; "": all
	Wanted    func(node string) bool // nil: all nodes
	Timeout   time.Duration          // of each command
	LogLines  int                    // the last lines of each log
	Parallel  int                    // number of nodes at a time
	Files     []File                 // further files
	Name      string                 // the archive's directory
	Header    string                 // first lines of the index
	Progress  func(Progress)         // called from one goroutine at a time
}

// Kubectl runs kubectl. An error with a method ExitCode has the exit code of a program in a pod.
type Kubectl interface {
	Output(ctx context.Context, args ...string) ([]byte, error)
	// Forwarded reads a path over HTTP from a port of the pod's loopback address.
	Forwarded(ctx context.Context, namespace, pod, port, path string) ([]byte, error)
}

// File is a file that the caller makes.
type File struct {
	Name string
	Make func(ctx context.Context) ([]byte, error)
}

// Progress says that a node's files, or with an empty name the cluster's, were collected.
type Progress struct {
	Node           string
	Files, Missing int
	Done, Nodes    int // of all nodes
}

// Summary counts files.
type Summary struct{ Files, Missing int }

// Write collects everything and writes the archive, a tar.gz. Files that cannot be had are missing, and the archive's index has the reasons.
// Parts that are not collected when the context ends are missing as well. It fails if writing
// fails, or if the API server does not answer at all.
func Write(ctx context.Context, w io.Writer, c Config) (Summary, error) {
	a := newArchive(w, c.Name)
	release, err := c.kubectl(ctx, "get", "--raw", "/version")
	if err != nil {
		return Summary{}, err
	}
	a.add("version.json", release, nil)
	pods := c.collectCluster(ctx, a)
	nodes := byNode(pods, c.Wanted)
	s := a.summary()
	c.Progress(Progress{Files: s.Files, Missing: s.Missing, Nodes: len(nodes)})
	c.collectNodes(ctx, a, nodes)
	return a.summary(), a.close(c.Header)
}

// nodePods are the pods of a node.
type nodePods struct {
	node string
	pods []pod
}

// byNode groups pods by their nodes, in the order of names.
func byNode(pods []pod, wanted func(string) bool) (nodes []nodePods) {
	slices.SortFunc(pods, func(a, b pod) int {
		return cmp.Or(cmp.Compare(a.Spec.NodeName, b.Spec.NodeName), cmp.Compare(a.Metadata.Name, b.Metadata.Name))
	})
	for _, p := range pods {
		switch name := p.Spec.NodeName; {
		case name == "" || wanted != nil && !wanted(name): // "": not scheduled, in objects/pods.json
		case len(nodes) > 0 && nodes[len(nodes)-1].node == name:
			last := &nodes[len(nodes)-1]
			last.pods = append(last.pods, p)
		default:
			nodes = append(nodes, nodePods{node: name, pods: []pod{p}})
		}
	}
	return nodes
}

// collectNodes collects the files of several nodes at a time.
func (c Config) collectNodes(ctx context.Context, a *archive, nodes []nodePods) {
	work := make(chan nodePods)
	var workers sync.WaitGroup
	var mu sync.Mutex
	done := 0
	for range min(c.Parallel, len(nodes)) {
		workers.Go(func() {
			for n := range work {
				files := c.collectNode(ctx, a, n)
				mu.Lock()
				done++
				c.Progress(Progress{Node: n.node, Files: files.Files, Missing: files.Missing, Done: done, Nodes: len(nodes)})
				mu.Unlock()
			}
		})
	}
	for _, n := range nodes {
		work <- n
	}
	close(work)
	workers.Wait()
}
