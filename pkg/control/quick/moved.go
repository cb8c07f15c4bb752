// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"fmt"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
)

// moveTimeout is the time within which a daemon learns that its interface was moved.
const moveTimeout = time.Second

// movedTo returns the network namespace of an interface that Up has created here, and that a hook or a command has moved since; 0 for none. Its
// daemon knows where it is. The caller has not found the interface here.
func (j *job) movedTo() hostnet.Namespace {
	here, err := hostnet.CurrentNamespace()
	if err != nil {
		return 0
	}
	for deadline := time.Now().Add(moveTimeout); ; time.Sleep(pollInterval) {
		report, err := j.report()
		if err != nil || report.TUN.NetNS == 0 {
			return 0
		}
		if report.TUN.NetNS != here {
			return report.TUN.NetNS
		}
		if time.Now().After(deadline) {
			return 0
		}
	}
}

// checkMoved decides about an interface that is in another network namespace. One that Up has created is worked on from here; of another one
// the error says where it is.
func (j *job) checkMoved(ns hostnet.Namespace) error {
	p, err := j.findProcess()
	if err != nil {
		return err
	}
	defer p.close()
	if !p.ours {
		return fmt.Errorf("`%s' is in network namespace %s, and was not brought up here: run this command there, with `%s`", j.Name, ns, ns.Enter())
	}
	j.netNS = ns
	j.warn("%s is in network namespace %s", j.Name, ns)
	return nil
}

// there calls f in the interface's network namespace.
func (j *job) there(f func() error) error {
	if j.netNS == 0 {
		return f()
	}
	return j.netNS.Do(f)
}
