// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/uapi"
)

// linkGrace is how long a daemon may take to follow its link before it is asked why it does not: it hears of the link
// from the kernel, in its own time.
const linkGrace = 200 * time.Millisecond

// listening waits until the daemon has opened its UDP port, which it does when the link comes up, and says why it cannot.
func (j *job) listening(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, j.timeout(), errors.New("its daemon does not follow the link"))
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

// retryPort sets the listen port to what it is. A daemon whose link is up then tries to open it, and the answer is how
// that went; one that has come up meanwhile keeps its port.
func retryPort(c *uapi.Client) error {
	st, err := c.Status()
	if err != nil {
		return err
	}
	if err := c.Configure(config.Device{ListenPort: &st.ListenPort}); err != nil {
		return fmt.Errorf("opening UDP port %d: %w%s", st.ListenPort, err, portHint(err))
	}
	return nil
}

// portHint says what to do about a port that cannot be opened.
func portHint(err error) string {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return "; free this port, or set another ListenPort"
	case errors.Is(err, syscall.EMFILE):
		return "; raise the limit of open files (ulimit -n)"
	}
	return ""
}
