// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ropewalk/ropewalk/test/expect"
)

// testReboot cuts the power of a node whose pods send all the time, and lets them run before the agent, whose image comes late.
// Nothing of that may leave in the clear, since the node has the documented systemd unit.
func (c *cluster) testReboot() {
	a, n := c.nodes[0].pod(), c.nodes[1]
	c.kubectl("run", "chat", "--image="+podImage, "--image-pull-policy=Never", "--overrides", `{"spec": {"nodeName": "`+n.name+`"}}`, "--",
		"chat", a.addrs[0]+":"+toolPort)
	c.kubectl("wait", "--for=condition=Ready", "pod/chat", "--timeout=3m")
	n.stop()
	n.boot()
	n.dropUntilAgent()
	n.removeAgentImages()
	tap := n.tap()
	n.startKubelet()
	n.awaitChat()
	n.importImages()
	c.allReachEachOther()
	c.awaitRollout()
	c.kubectl("wait", "--for=condition=Ready", "pod/chat", "--timeout=3m")
	tap.end()
	c.kubectl("delete", "pod", "chat", "--now")
}

// removeAgentImages removes what the agent's pod could be started from.
func (n *node) removeAgentImages() {
	n.c.Helper()
	for _, tag := range []string{firstTag, nextTag} {
		_, err := n.ctr("images", "rm", "--sync", agentImage+":"+tag)
		expect.NoError(n.c, err)
	}
}

// awaitChat waits until the pod that sends runs since the reboot.
func (n *node) awaitChat() {
	n.c.Helper()
	expect.Eventually(n.c, "the pod that sends runs again on "+n.name, func() bool {
		files, _ := filepath.Glob("/proc/[0-9]*/cmdline") // includes the processes of all PID namespaces below
		return slices.ContainsFunc(files, func(file string) bool {
			text, _ := os.ReadFile(file)
			return bytes.HasPrefix(text, []byte("/pod\x00chat\x00"))
		})
	})
}

// dropUntilAgent does what systemd does at boot with deploy/systemd/ropewalk-blackholes.service.
func (n *node) dropUntilAgent() {
	n.c.Helper()
	unit, err := os.ReadFile(root + "/deploy/systemd/ropewalk-blackholes.service")
	expect.NoError(n.c, err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for line := range strings.Lines(string(unit)) {
		if command, ok := strings.CutPrefix(line, "ExecStart=-"); ok {
			out, err := n.run(ctx, strings.Fields(command)...) // systemd ignores the result, too
			n.c.Log(command, out, err)
		}
	}
}
