// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
)

// testKill kills the agent's process while pods have traffic, and then its container. Another process follows the first in the same container. The second is
// restarted by the kubelet.
func (c *cluster) testKill() {
	if _, err := os.Stat("/proc/thread-self/children"); err != nil {
		c.Skipf("needs CONFIG_PROC_CHILDREN: %v", err)
	}
	a, n := c.nodes[0].pod(), c.nodes[1]
	b := n.pod()
	before, err := n.agentProcess()
	expect.NoError(c, err)
	traffic := a.probe(b, often)
	expect.NoError(c, unix.Kill(before.pid, unix.SIGKILL))
	expect.EventuallyNoError(c, "another agent runs in the container", func() error {
		children, err := childrenOf(before.parent)
		if err == nil && (len(children) != 1 || children[0] == before.pid) {
			err = fmt.Errorf("after process %d, the first process has the children %v", before.pid, children)
		}
		return err
	})
	traffic.flows() // before another program takes CPU time
	a.reaches(b)
	c.Logf("kill of the agent: %v", traffic.end())

	traffic = a.probe(b, often)
	expect.NoError(c, unix.Kill(before.parent, unix.SIGKILL))
	traffic.flows()
	a.reaches(b)
	c.Logf("kill of its container: %v", traffic.end())
	expect.EventuallyNoError(c, "the kubelet has started another container", func() error {
		after, err := n.agentProcess()
		if err == nil && after.parent == before.parent {
			err = fmt.Errorf("got process %+v after %+v", after, before)
		}
		return err
	})
	c.awaitRollout()
}

// childrenOf returns the children of a process. It reads few files, so that a test that waits takes no CPU time from what it waits for.
func childrenOf(pid int) (children []int, err error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("process %d has ended", pid)
	}
	for _, file := range files {
		text, _ := os.ReadFile(file) // a thread may end meanwhile
		for _, f := range bytes.Fields(text) {
			child, err := strconv.Atoi(string(f))
			if err != nil {
				return nil, err
			}
			children = append(children, child)
		}
	}
	return children, nil
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
