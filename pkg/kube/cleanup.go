// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ropewalk/ropewalk/pkg/adopt"
	"github.com/ropewalk/ropewalk/pkg/hostnet"
	"github.com/ropewalk/ropewalk/pkg/kube/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/uapi"
)

// CleanupConfig is what Cleanup is told.
type CleanupConfig struct {
	// Config is the agent's. Of it, Node, API, BPF, Tunnel, KeyDir, Learn, Version and Log are used. Without an API, nobody is told.
	Config
	// RemoveKeys says that the node's keys go, too: with the next one it is another node to all others.
	RemoveKeys bool
	// PublishTimeout is for how long the API is tried, to tell the others; 0: DefaultPublishTimeout.
	PublishTimeout time.Duration
}

// DefaultPublishTimeout is for how long Cleanup tries to tell the others: what they do not learn of costs them traffic.
const DefaultPublishTimeout = 2 * time.Minute

// Cleanup takes away all that agents left on this host, in either mode: it tells the others that this node has no agent any
// more, gives them the time to learn of it, and then removes programs, routes and the tunnel. What is not there is no error.
// Where one part fails, the others are removed nevertheless.
//
// No agent may run on the host: it would make all of it anew. Routes that keep traffic from leaving in the clear go as well:
// from then on it goes wherever the cluster's other routes lead.
func Cleanup(ctx context.Context, c CleanupConfig) error {
	c.Config = c.withDefaults()
	if err := c.withdraw(ctx); err != nil {
		c.Log.Warn("others are not told, and learn of it by handshakes that fail", "error", err)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return errors.Join(c.removePrograms(ctx), c.removeTunnel(), c.removeRoutes(), c.removeFiles())
}

// withdraw leaves of the node's status only that it has no agent, and waits until the others know.
func (c *CleanupConfig) withdraw(ctx context.Context) error {
	if c.API == nil || c.Node == "" {
		return nil
	}
	client, err := newClient(c.API)
	if err != nil {
		return err
	}
	err = c.publish(ctx, client)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	c.Log.Info("others are told", "node", c.Node, "wait", c.Propagation)
	select {
	case <-ctx.Done():
	case <-time.After(c.Propagation):
	}
	return nil
}

// publishRetryMin is how long to wait before the API is tried again, at first, and publishRetryMax at most.
const publishRetryMin, publishRetryMax = 200 * time.Millisecond, 10 * time.Second

// publish writes the status until that succeeds, is refused (an admission policy's refusal is an invalid object) or there is
// nothing to write it to, or it is time to go on.
func (c *CleanupConfig) publish(ctx context.Context, client *client) error {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(c.PublishTimeout, DefaultPublishTimeout))
	defer cancel()
	for pause := publishRetryMin; ; pause = min(2*pause, publishRetryMax) {
		err := c.publishOnce(ctx, client)
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
			return err
		}
		level := slog.LevelDebug
		if pause == publishRetryMin {
			level = slog.LevelWarn
		}
		c.Log.Log(ctx, level, "the others are not told yet; trying again", "error", err, "most", cmp.Or(c.PublishTimeout, DefaultPublishTimeout))
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait.Jitter(pause, 0.5)):
		}
	}
}

func (c *CleanupConfig) publishOnce(ctx context.Context, client *client) error {
	return client.apply(ctx, c.Node, v1alpha1.NodeStatus{AgentVersion: c.Version, Conditions: []metav1.Condition{{
		Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: "CleanedUp", LastTransitionTime: metav1.Now(),
		Message: "the node has no agent any more",
	}}})
}

// removePrograms detaches from all devices, whatever the tunnel's port was.
func (c *CleanupConfig) removePrograms(ctx context.Context) error {
	host := &adopt.Host{FS: c.BPF}
	all, err := host.Status(ctx, "")
	errs := []error{err}
	for _, d := range all {
		err := host.Detach(ctx, d.Device, 0)
		if err == nil {
			c.Log.Info("programs are detached", "device", d.Device)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// removeTunnel deletes the interface, if it is one that an agent left, and the socket that a killed agent leaves.
func (c *CleanupConfig) removeTunnel() error {
	link, err := hostnet.FindLink(c.Tunnel)
	if errors.Is(err, hostnet.ErrNoLink) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking for the tunnel: %w", err)
	}
	if link.Kind != "tuntap" {
		return fmt.Errorf("deleting the tunnel %s: it is none of ropewalk's, but of the kind %s", c.Tunnel, link.Kind)
	}
	socket, err := uapi.Listen(c.Tunnel) // in place of a dead one, but not of one that is served
	if err != nil {
		return fmt.Errorf("deleting the tunnel %s, which somebody may still serve: %w", c.Tunnel, err)
	}
	if err := errors.Join(socket.Close(), RemoveTunnel(c.Tunnel)); err != nil {
		return err
	}
	c.Log.Info("tunnel is deleted", "interface", c.Tunnel)
	return nil
}

func (c *CleanupConfig) removeRoutes() error {
	n, err := applyRouting(c.Tunnel, nil, false)
	if n > 0 {
		c.Log.Info("routes are removed", "routes", n)
	}
	return err
}

// removeFiles removes what agents keep in their directory, keys only if they are to go, and the directory if nothing else is in
// it.
func (c *CleanupConfig) removeFiles() error {
	patterns := []string{stateFile + "*"}
	if c.RemoveKeys {
		patterns = append(patterns, "private*.key", "private*.key.*")
	}
	var errs []error
	for _, pattern := range patterns {
		paths, err := filepath.Glob(filepath.Join(c.KeyDir, pattern))
		errs = append(errs, err)
		for _, p := range paths {
			if err := os.Remove(p); err != nil {
				errs = append(errs, fmt.Errorf("removing the agent's files: %w", err))
				continue
			}
			c.Log.Info("file is removed", "path", p)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	left, err := os.ReadDir(c.KeyDir)
	if err == nil && len(left) == 0 {
		err = os.Remove(c.KeyDir)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the directory of the agent's files: %w", err)
	}
	return nil
}
