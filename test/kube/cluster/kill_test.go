// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
)

// testKill kills the agent's process while pods have traffic, and then its container. Another process follows the first in the same container. The second is
// restarted by the kubelet.
func (c *cluster) testKill() {
	a, n := c.nodes[0].pod(), c.nodes[1]
	b := n.pod()
	for _, tt := range []struct {
		what      string
		container bool
	}{{"kill of the agent", false}, {"kill of its container", true}} {
		traffic := a.probe(b, often)
		before, err := n.agentProcess()
		expect.NoError(c, err)
		victim := before.pid
		if tt.container {
			victim = before.parent
		}
		expect.NoError(c, unix.Kill(victim, unix.SIGKILL))
		expect.EventuallyNoError(c, "another agent follows the "+tt.what, func() error {
			after, err := n.agentProcess()
			if err == nil && (after.pid == before.pid || (after.parent != before.parent) != tt.container) {
				err = fmt.Errorf("got process %+v after %+v", after, before)
			}
			return err
		})
		a.reaches(b)
		c.Logf("%s: %v", tt.what, traffic.end())
	}
	c.awaitRollout()
}

// agentProcess is an agent, whose parent is the first process of its container.
type agentProcess struct{ pid, parent int }

// agentProcess finds the only process of an agent on the node.
func (n *node) agentProcess() (found agentProcess, err error) {
	network, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", n.init.Process.Pid))
	if err != nil {
		return found, err
	}
	entries, err := os.ReadDir("/proc") // includes the processes of all PID namespaces below
	if err != nil {
		return found, err
	}
	for _, e := range entries {
		pid, _ := strconv.Atoi(e.Name())
		dir := "/proc/" + e.Name()
		args, _ := os.ReadFile(dir + "/cmdline")
		if at, _ := os.Readlink(dir + "/ns/net"); at != network || !bytes.HasPrefix(args, []byte("/usr/bin/ropewalk-agent\x00--mode=")) {
			continue
		}
		if found.pid != 0 {
			return found, fmt.Errorf("%s has two agents", n.name)
		}
		found.pid = pid
		if found.parent, err = parentOf(dir); err != nil {
			return found, err
		}
	}
	if found.pid == 0 {
		return found, fmt.Errorf("%s has no agent", n.name)
	}
	return found, nil
}

// parentOf reads a process's parent from its directory in /proc.
func parentOf(dir string) (int, error) {
	text, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return 0, err
	}
	_, rest, _ := bytes.Cut(text, []byte(") ")) // the end of the program's name
	f := bytes.Fields(rest)
	if len(f) < 2 {
		return 0, fmt.Errorf("reading %s/stat: got %q", dir, text)
	}
	return strconv.Atoi(string(f[1]))
}
