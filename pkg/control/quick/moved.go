// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"errors"
	"fmt"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
)

// moveTimeout is the time within which a daemon learns that its interface was moved.
const moveTimeout = time.Second

// findMoved finds an interface that the caller has not found here. Errors: ErrNotWireGuard if it
// is nowhere else, and the errors of movedTo and checkMoved.
func (j *job) findMoved() error {
	ns, err := j.movedTo()
	if err != nil {
		return err
	}
	if ns == 0 {
		return fmt.Errorf("`%s' %w", j.Name, ErrNotWireGuard)
	}
	return j.checkMoved(ns)
}

// movedTo returns the network namespace of an interface that a hook or a command has moved; 0 for none. Its daemon knows where it is. The error is
// ErrUnresponsive for a daemon that hangs.
func (j *job) movedTo() (hostnet.Namespace, error) {
	here, err := hostnet.CurrentNamespace()
	if err != nil {
		return 0, err
	}
	for deadline := time.Now().Add(moveTimeout); ; time.Sleep(pollInterval) {
		report, err := j.report()
		switch {
		case errors.Is(err, ErrUnresponsive):
			return 0, err
		case err != nil || report.TUN.NetNS == 0:
			return 0, nil
		case report.TUN.NetNS != here:
			return report.TUN.NetNS, nil
		case time.Now().After(deadline):
			return 0, nil
		}
	}
}

// checkMoved decides about an interface that is in another network namespace. An interface that Up
// has created is worked on from here. For another one the error says where it is.
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
