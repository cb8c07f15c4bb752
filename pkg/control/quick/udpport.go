// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// linkGrace is how long a daemon may take to notice that its link is up, before retryPort asks for the reason. The kernel notifies the
// daemon asynchronously.
const linkGrace = 200 * time.Millisecond

// waitForPort waits until the daemon has opened its UDP port, which it does when the link comes up. Its error has the daemon's reason.
func (j *job) waitForPort(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, j.timeout(), errors.New("its daemon did not open the UDP port in time"))
	defer cancel()
	c, err := j.Sockets.Dial(j.Name)
	if err != nil {
		return err
	}
	defer c.Close()
	grace := time.Now().Add(linkGrace)
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		up, err := isUp(c)
		if err == nil && !up && time.Now().After(grace) {
			err = retryPort(c)
		}
		if err != nil || up {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("bringing %s up: %w", j.Name, context.Cause(ctx))
		case <-ticker.C:
		}
	}
}

func isUp(c *uapi.Client) (bool, error) {
	var stats struct {
		Up bool `json:"up"`
	}
	err := c.Stats(&stats)
	return stats.Up, err
}

// retryPort sets the listen port to its present value. A daemon whose link is up then tries to open the port, and answers with the
// result. A daemon that has opened it meanwhile keeps it.
func retryPort(c *uapi.Client) error {
	st, err := c.Status()
	if err != nil {
		return err
	}
	if err := c.Configure(config.Device{ListenPort: &st.ListenPort}); err != nil {
		return fmt.Errorf("opening listen port %d: %w%s", st.ListenPort, err, portHint(err))
	}
	return nil
}

// portHint returns advice for a port that cannot be opened.
func portHint(err error) string {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return "; free this port, or set another ListenPort"
	case errors.Is(err, syscall.EMFILE):
		return "; raise the limit of open files (ulimit -n)"
	}
	return ""
}
