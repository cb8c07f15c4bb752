// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
)

// agentEnv makes the test binary an agent, and has its configuration as JSON. Each agent needs a process in a network namespace
// of its own, and the test machine may have no other binary.
const agentEnv = "ROPEWALK_TEST_AGENT"

func TestMain(m *testing.M) {
	if text := os.Getenv(agentEnv); text != "" {
		if err := runTestAgent([]byte(text)); err != nil {
			slog.Error("running the agent failed", "error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// agentOrders configures an agent in spread mode.
type agentOrders struct{ Node, Server, BPF, KeyDir string }

func runTestAgent(text []byte) error {
	var o agentOrders
	if err := json.Unmarshal(text, &o); err != nil {
		return fmt.Errorf("decoding the agent's configuration: %w", err)
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	klog.SetSlogLogger(log)
	a, err := New(Config{
		Node: o.Node, API: &rest.Config{Host: o.Server}, Mode: mesh.ModeSpread, Version: "test", Log: log, SpreadConfig: SpreadConfig{BPF: o.BPF}, Propagation: 1,
		KeyDir: o.KeyDir,
	})
	if err != nil {
		return err
	}
	return a.Run(context.Background())
}

// agentProcess is an agent's process in a network namespace.
type agentProcess struct {
	t   *testing.T
	cmd *netlab.Command
	log bytes.Buffer // may be read once the process has ended
}

func startAgent(t *testing.T, h *netlab.Host, o agentOrders) *agentProcess {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	a := &agentProcess{t: t, cmd: h.Command(context.Background(), self)}
	a.cmd.Env = append(os.Environ(), agentEnv+"="+string(text))
	a.cmd.Stdout, a.cmd.Stderr = &a.log, &a.log
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.kill)
	return a
}

// kill ends the process with SIGKILL, as the OOM killer does. It may be called again.
func (a *agentProcess) kill() {
	if a.cmd.ProcessState != nil {
		return
	}
	_ = a.cmd.Process.Kill()
	_ = a.cmd.Wait()
	if a.t.Failed() {
		a.t.Logf("log of an agent:\n%s", a.log.String())
	}
}

// newRegistry returns a registry of all of an agent's own metrics.
func newRegistry(s *Stats) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(s.collectors()...)
	return r
}
