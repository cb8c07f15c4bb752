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

// The processes of a node: their arguments begin with these.
const (
	agentArgs  = "/usr/bin/ropewalk-agent\x00--mode="
	engineArgs = "ropewalk\x00run\x00" // the daemon, whose parent is the first process of its container
)

// testKill kills the agent, the engine's daemon and then the engine's container, while pods have traffic. The agent carries no packets. Another daemon follows
// the first in the same container. The containers are restarted by the kubelet.
func (c *cluster) testKill() {
	if _, err := os.Stat("/proc/thread-self/children"); err != nil {
		c.Skipf("needs CONFIG_PROC_CHILDREN: %v", err)
	}
	a, n := c.nodes[0].pod(), c.nodes[1]
	b := n.pod()
	agent, err := n.process(agentArgs)
	expect.NoError(c, err)
	daemon, err := n.process(engineArgs)
	expect.NoError(c, err)
	traffic := a.probe(b, often)
	expect.NoError(c, unix.Kill(agent.pid, unix.SIGKILL))
	n.awaitAnother(agentArgs, agent)
	traffic.flows()
	c.Logf("kill of the agent: %v", traffic.endWithoutLoss())
	if after, err := n.process(engineArgs); err != nil || after != daemon {
		c.Errorf("the engine is process %+v after %+v, %v", after, daemon, err)
	}
	c.awaitRollout()

	traffic = a.probe(b, often)
	expect.NoError(c, unix.Kill(daemon.pid, unix.SIGKILL))
	expect.EventuallyNoError(c, "another daemon runs in the container", func() error {
		children, err := childrenOf(daemon.parent)
		if err == nil && (len(children) != 1 || children[0] == daemon.pid) {
			err = fmt.Errorf("after process %d, the first process has the children %v", daemon.pid, children)
		}
		return err
	})
	traffic.flows() // before another program takes CPU time
	a.reaches(b)
	c.Logf("kill of the engine: %v", traffic.end())

	traffic = a.probe(b, often)
	expect.NoError(c, unix.Kill(daemon.parent, unix.SIGKILL))
	traffic.flows()
	a.reaches(b)
	c.Logf("kill of its container: %v", traffic.end())
	if after, err := n.process(engineArgs); err != nil || after.parent == daemon.parent {
		c.Errorf("the engine is process %+v after %+v, %v", after, daemon, err)
	}
	c.awaitRollout()
}

// awaitAnother waits until another process follows one that was killed.
func (n *node) awaitAnother(args string, killed process) {
	n.c.Helper()
	expect.EventuallyNoError(n.c, "the kubelet has started another container", func() error {
		after, err := n.process(args)
		if err == nil && after.pid == killed.pid {
			err = fmt.Errorf("got process %+v after %+v", after, killed)
		}
		return err
	})
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

// process is one of a node's, with its parent.
type process struct{ pid, parent int }

// process finds the only process of the node whose arguments begin so.
func (n *node) process(begin string) (found process, err error) {
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
		if at, _ := os.Readlink(dir + "/ns/net"); at != network || !bytes.HasPrefix(args, []byte(begin)) {
			continue
		}
		if found.pid != 0 {
			return found, fmt.Errorf("%s has two processes %q", n.name, begin)
		}
		found.pid = pid
		if found.parent, err = parentOf(dir); err != nil {
			return found, err
		}
	}
	if found.pid == 0 {
		return found, fmt.Errorf("%s has no process %q", n.name, begin)
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
