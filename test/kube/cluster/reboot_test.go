// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/ropewalk/ropewalk/test/expect"
)

// testReboot cuts the power of a node whose pods send all the time. Nothing of that may leave in the clear until the agent
// runs again, since the node has the documented systemd unit.
func (c *cluster) testReboot() {
	a, n := c.nodes[0].pod(), c.nodes[1]
	c.kubectl("run", "chat", "--image="+podImage, "--image-pull-policy=Never", "--overrides", `{"spec": {"nodeName": "`+n.name+`"}}`, "--",
		"chat", a.addrs[0]+":"+toolPort)
	c.kubectl("wait", "--for=condition=Ready", "pod/chat", "--timeout=3m")
	n.stop()
	n.boot()
	n.dropUntilAgent()
	tap := n.tap()
	n.startKubelet()
	expect.EventuallyNoError(c, "pods reach each other after a reboot", func() error {
		b, err := n.findPod()
		if err != nil {
			return err
		}
		server, _, err := a.dial(b.addrs[0])
		if err == nil && server != b.name {
			err = fmt.Errorf("got server %q, want %s", server, b.name)
		}
		return err
	})
	c.awaitRollout()
	c.kubectl("wait", "--for=condition=Ready", "pod/chat", "--timeout=3m")
	n.pod().reaches(a)
	tap.end()
	c.kubectl("delete", "pod", "chat", "--now")
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
