// SPDX-License-Identifier: Apache-2.0

package agent

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

	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
)

// CleanupConfig configures Cleanup.
type CleanupConfig struct {
	// Config is the agent's. Cleanup uses Node, API, BPF, Tunnel, KeyDir, Propagation, Version and Log. Without an API, it
	// publishes nothing.
	Config
	// RemoveKeys deletes the node's keys as well. With another key, it is a new node to all others.
	RemoveKeys bool
	// PublishTimeout bounds how long to retry the API; 0: DefaultPublishTimeout.
	PublishTimeout time.Duration
}

// errAgentRuns means that an agent holds the lock of the key directory.
var errAgentRuns = errors.New("an agent runs on this host, nothing was removed: stop the agent first")

// DefaultPublishTimeout is the default of CleanupConfig.PublishTimeout. Without the status, other nodes keep sending to this
// one and lose traffic.
const DefaultPublishTimeout = 2 * time.Minute

// Cleanup removes everything that agents left on this host, in either mode. It first publishes that this node has no agent any
// more, and removes the routes: nobody serves the tunnel that they lead into. Then it waits until the others know, and removes
// programs, the tunnel and files. Missing parts are no error. If one part fails, the others are removed nevertheless.
//
// While an agent runs on the host, it would add everything again: Cleanup then fails and changes nothing. Cleanup removes the routes that keep traffic from leaving in the
// clear, too. From then on, traffic follows the cluster's other routes.
func Cleanup(ctx context.Context, c CleanupConfig) error {
	c.Config = c.withDefaults()
	var lock instanceLock
	if held, err := lock.try(c.KeyDir); err == nil && !held {
		return fmt.Errorf("cleaning up: %w", errAgentRuns)
	}
	defer lock.release()
	published, err := c.withdraw(ctx)
	if err != nil {
		c.Log.Warn("publishing that this node has no agent failed, cleaning up anyway: other nodes' traffic for it may be lost until its RopewalkNode is deleted", "node", c.Node, "error", err)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	routesErr := c.removeRoutes()
	if published {
		c.Log.Info("published that this node has no agent, keeping the tunnel until other nodes have stopped using it", "node", c.Node, "wait", c.Propagation)
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), routesErr)
		case <-time.After(c.Propagation):
		}
	}
	return errors.Join(routesErr, c.removePrograms(ctx), c.removeTunnel(), c.removeFiles())
}

// withdraw reduces the node's status to a condition that it has no agent. It reports whether other nodes will learn of it.
func (c *CleanupConfig) withdraw(ctx context.Context) (published bool, err error) {
	if c.API == nil || c.Node == "" {
		return false, nil
	}
	client, err := newClient(c.API)
	if err != nil {
		return false, err
	}
	err = c.publish(ctx, client)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// publishRetryMin and publishRetryMax bound the delay between attempts to publish.
const publishRetryMin, publishRetryMax = 200 * time.Millisecond, 10 * time.Second

// publish writes the status. It retries until that succeeds, is rejected (an admission policy rejects with Invalid), or finds
// no object, or until the timeout.
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
		c.Log.Log(ctx, level, "publishing that this node has no agent failed, retrying until the timeout", "error", err, "timeout", cmp.Or(c.PublishTimeout, DefaultPublishTimeout))
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

// removePrograms detaches from all devices, for any port.
func (c *CleanupConfig) removePrograms(ctx context.Context) error {
	host := &spreader.Host{FS: c.BPF}
	all, err := host.Status(ctx, "")
	errs := []error{err}
	for _, d := range all {
		err := host.Detach(ctx, d.Device, 0)
		if err == nil {
			c.Log.Info("cleanup detached the spread and gather programs from a device, its tunnel uses one source port again", "device", d.Device)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// removeTunnel deletes the interface if an agent left it, and the socket of a killed agent.
func (c *CleanupConfig) removeTunnel() error {
	link, err := hostnet.FindLink(c.Tunnel)
	if errors.Is(err, hostnet.ErrNoLink) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("finding the tunnel %s: %w", c.Tunnel, err)
	}
	if link.Kind != "tuntap" {
		return fmt.Errorf("deleting the tunnel %s: not a TUN device of ropewalk, but of kind %s", c.Tunnel, link.Kind)
	}
	socket, err := uapi.Listen(c.Tunnel) // replaces a stale socket, but fails on one that is served
	if err != nil {
		return fmt.Errorf("deleting the tunnel %s, which another process may be serving: %w", c.Tunnel, err)
	}
	if err := errors.Join(socket.Close(), RemoveTunnel(c.Tunnel)); err != nil {
		return err
	}
	c.Log.Info("cleanup deleted the tunnel's interface", "interface", c.Tunnel)
	return nil
}

func (c *CleanupConfig) removeRoutes() error {
	if _, err := setPlaintextFilter(c.Tunnel, false, nil); err != nil {
		c.Log.Warn("cleanup could not remove the nftables table that drops unencrypted packets, leaving it: without the tunnel it drops nothing", "interface", c.Tunnel, "table", "inet "+filterTable, "error", err)
	}
	n, err := applyRouting(c.Tunnel, nil)
	if n > 0 {
		c.Log.Info("cleanup removed the routes into the tunnel", "routes", n)
	}
	return err
}

// removeFiles removes the persisted state, the keys if requested, and the directory if it is empty then.
func (c *CleanupConfig) removeFiles() error {
	patterns := []string{stateFile + "*", lockFile, "blackholes-*"}
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
			c.Log.Info("cleanup removed a file of the agent", "file", p)
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
		return fmt.Errorf("removing the agent's directory: %w", err)
	}
	return nil
}
