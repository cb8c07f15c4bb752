// SPDX-License-Identifier: Apache-2.0

// Command joiners runs many agents in one process for test/kube, with engines and networks that do nothing. Each line of its
// input is a command. "begin NODE" starts an agent with the token in the directory's file of that name. "report" prints the
// counters of all agents as one line of JSON.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/client-go/rest"

	"github.com/ropewalk/ropewalk/pkg/cluster/agent"
	"github.com/ropewalk/ropewalk/pkg/cluster/engine"
	"github.com/ropewalk/ropewalk/pkg/cluster/host"
	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/meshmode"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

func main() {
	server := flag.String("server", "", "URL of the API server")
	dir := flag.String("dir", "", "directory with the nodes' tokens, and the API server's CA as ca")
	flag.Parse()
	if err := run(*server, *dir); err != nil {
		slog.Error("running the simulated agents of test/kube failed, this process ends and the test fails", "error", err)
		os.Exit(1)
	}
}

func run(server, dir string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var all []*joiner
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if name, ok := strings.CutPrefix(lines.Text(), "begin "); ok {
			j, err := begin(ctx, server, dir, name)
			if err != nil {
				return err
			}
			all = append(all, j)
			continue
		}
		if err := report(all); err != nil {
			return err
		}
	}
	return lines.Err()
}

// done has the counters of one agent.
type done struct {
	Name                                      string
	Peers, Added, Removed, Writes, Reconciles int
	// OwnHeartbeats and OtherHeartbeats count heartbeats of Nodes in answers to watches.
	OwnHeartbeats, OtherHeartbeats int
}

func report(all []*joiner) error {
	list := make([]done, len(all))
	for i, j := range all {
		list[i] = j.done()
	}
	return json.NewEncoder(os.Stdout).Encode(list)
}

// joiner is one agent's Engine and Network.
type joiner struct {
	name       string
	writes     atomic.Int64
	stats      *agent.Stats
	heartbeats heartbeats

	mu             sync.Mutex
	key            noise.PublicKey
	port           uint16
	mark           uint32
	peers          map[noise.PublicKey]*config.PeerStatus
	added, removed int
	probes         uint64
}

func begin(ctx context.Context, server, dir, name string) (*joiner, error) {
	j := &joiner{name: name, heartbeats: heartbeats{name: name}, peers: map[noise.PublicKey]*config.PeerStatus{}}
	cfg := &rest.Config{
		Host: server, BearerTokenFile: filepath.Join(dir, name), QPS: 100, Burst: 100,
		TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(dir, "ca")},
	}
	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper { return counting{rt, j} })
	agent, err := agent.New(agent.Config{
		Node: name, API: cfg, Mode: mesh.ModeMesh, Log: slog.New(slog.DiscardHandler),
		KeyDir: filepath.Join(dir, "keys", name),
		MeshConfig: agent.MeshConfig{
			Network: j, Engine: j, Guard: noGuard{},
		},
	})
	if err != nil {
		return nil, err
	}
	j.stats = agent.Stats()
	go func() { _ = agent.Run(ctx) }()
	return j, nil
}

// counting counts the requests that write, and the heartbeats in the answers to watches.
type counting struct {
	http.RoundTripper
	j *joiner
}

func (c counting) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet {
		c.j.writes.Add(1)
	}
	answer, err := c.RoundTripper.RoundTrip(r)
	if err == nil && r.URL.Query().Has("watch") {
		answer.Body = &watched{ReadCloser: answer.Body, to: &c.j.heartbeats}
	}
	return answer, err
}

// heartbeats counts the Nodes with a heartbeat, which test/kube marks.
type heartbeats struct {
	name       string
	own, other atomic.Int64
}

// heartbeat marks a Node's name.
var heartbeat = regexp.MustCompile(`heartbeat-of-([^\s"]+) `)

// watched is the body of an answer to a watch.
type watched struct {
	io.ReadCloser
	to   *heartbeats
	rest []byte // may have the beginning of a mark
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.ReadCloser.Read(b)
	text := append(w.rest, b[:n]...)
	end := 0
	for _, m := range heartbeat.FindAllSubmatchIndex(text, -1) {
		if end = m[1]; string(text[m[2]:m[3]]) == w.to.name {
			w.to.own.Add(1)
		} else {
			w.to.other.Add(1)
		}
	}
	w.rest = append([]byte(nil), text[max(end, len(text)-300):]...)
	return n, err
}

func (j *joiner) done() done {
	j.mu.Lock()
	defer j.mu.Unlock()
	return done{
		Name: j.name, Peers: len(j.peers), Added: j.added, Removed: j.removed,
		Writes: int(j.writes.Load()), Reconciles: int(j.stats.Reconciles.Load()),
		OwnHeartbeats: int(j.heartbeats.own.Load()), OtherHeartbeats: int(j.heartbeats.other.Load()),
	}
}

// Configure implements agent.Engine.
func (j *joiner) Configure(c config.Device) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if c.PrivateKey != nil {
		j.key = c.PrivateKey.Public()
	}
	if c.ListenPort != nil {
		j.port = *c.ListenPort
	}
	if c.FwMark != nil {
		j.mark = *c.FwMark
	}
	for i := range c.Peers {
		p := &c.Peers[i]
		if p.Remove {
			j.removed++
			delete(j.peers, p.PublicKey)
			continue
		}
		st := j.peers[p.PublicKey]
		if st == nil {
			j.added++
			st = &config.PeerStatus{PublicKey: p.PublicKey}
			j.peers[p.PublicKey] = st
		}
		for _, a := range p.AllowedIPs {
			st.AllowedIPs = append(st.AllowedIPs, a.Prefix)
		}
	}
	return nil
}

// Status implements agent.Engine.
func (j *joiner) Status() (engine.Status, error) {
	st, err := j.StatusOf()
	return engine.Status{Status: st, Up: true}, err
}

// StatusOf implements agent.Engine.
func (j *joiner) StatusOf(...noise.PublicKey) (st config.Status, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	st.PublicKey, st.ListenPort, st.FwMark = j.key, j.port, j.mark
	for _, p := range j.peers {
		st.Peers = append(st.Peers, *p)
	}
	return st, nil
}

// PostQuantum implements agent.Engine. No session has a key.
func (j *joiner) PostQuantum() (*config.PostQuantumReport, error) {
	return &config.PostQuantumReport{}, nil
}

// Probe implements agent.Engine. All peers answer.
func (j *joiner) Probe(peers ...noise.PublicKey) (map[noise.PublicKey]config.PeerProbe, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.probes++
	reports := make(map[noise.PublicKey]config.PeerProbe, len(peers))
	for _, key := range peers {
		reports[key] = config.PeerProbe{Up: true, Session: true, Echoes: true, Sent: j.probes, Answered: j.probes}
	}
	return reports, nil
}

// noGuard implements meshmode.GuardHost: these agents have no devices of their own, and must not touch the host's.
type noGuard struct{}

func (noGuard) Open() (meshmode.Programs, error) { return nil, errors.New("no devices") }

func (noGuard) Remove() error { return nil }

// Save implements agent.Engine.
func (j *joiner) Save(config.Device) error { return nil }

// Forget implements agent.Engine.
func (j *joiner) Forget() error { return nil }

// Watch implements agent.Engine.
func (j *joiner) Watch(context.Context, func()) {}

// SetPlaintextFilter implements host.Network.
func (j *joiner) SetPlaintextFilter(string, bool, *host.NodeRouting) (int, error) { return 0, nil }

// SetRoutes implements host.Network.
func (j *joiner) SetRoutes(string, *host.Routing) (int, error) { return 0, nil }

// SetInterface implements host.Network.
func (j *joiner) SetInterface(string, int, []netip.Prefix) (int, error) { return 0, nil }

// RemoveInterface implements host.Network.
func (j *joiner) RemoveInterface(string) error { return nil }

// LinkMTU implements host.Network.
func (j *joiner) LinkMTU([]netip.Addr) (int, error) { return 1500, nil }
