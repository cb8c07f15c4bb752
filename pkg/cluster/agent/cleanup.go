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

	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ropewalk/ropewalk/pkg/cluster/host"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
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
	// Stay makes Cleanup wait for the end of a running agent, and when done until the context ends. Its Ready is set meanwhile. nil: Cleanup fails
	// beside an agent, and returns when everything is removed.
	Stay *Stats
}

// DefaultPublishTimeout is the default of CleanupConfig.PublishTimeout. Without the status, other nodes keep sending to this
// one and lose traffic.
const DefaultPublishTimeout = 2 * time.Minute

// Cleanup removes everything that agents left on this host, in either mode. Missing parts are no error. If one part fails, the others are removed
// nevertheless. While an agent runs on the host, it would add everything again: Cleanup then fails and changes nothing, or with Stay waits.
//
// Where cleartext is allowed, no step loses packets of pods. The routes into the tunnel are
// removed first. The engine serves the tunnel until the other nodes have learned that this one
// has no agent. Where other nodes refuse cleartext, the routes and the blackholes behind them
// stay until the others send nothing into the tunnel any more. With Stay, they stay until the
// context ends. By then the cleanup has run on all nodes. Afterwards, traffic follows the
// cluster's other routes.
func Cleanup(ctx context.Context, c CleanupConfig) error {
	c.Config = c.withDefaults()
	var lock instanceLock
	defer lock.release()
	if err := c.takeLock(ctx, &lock); err != nil {
		return err
	}
	strict := dropsCleartext(c.Log)
	published, err := c.withdraw(ctx)
	if err != nil {
		c.Log.Warn("publishing that this node has no agent failed, cleaning up anyway: other nodes' traffic for it may be lost until its RopewalkNode is deleted", "node", c.Node, "error", err)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	var routesErr error
	if !strict {
		routesErr = c.removeRoutes()
	}
	if published {
		c.Log.Info("published that this node has no agent, keeping the tunnel until other nodes have stopped using it", "node", c.Node, "wait", c.Propagation)
		if sleep(ctx, c.Propagation); ctx.Err() != nil {
			return errors.Join(ctx.Err(), routesErr)
		}
	}
	return c.removeAll(ctx, strict, routesErr)
}

// removeAll removes everything but the routes of a node that allows cleartext, which have been removed. routesErr is the error of
// their removal.
func (c *CleanupConfig) removeAll(ctx context.Context, strict bool, routesErr error) error {
	err := errors.Join(routesErr, c.removePrograms(ctx), c.removeTunnel(), c.removeFiles())
	if c.Stay != nil && err != nil {
		return err // the container is restarted: until then, the routes of a strict node stay
	}
	if c.Stay != nil {
		c.stay(ctx, strict)
	}
	if strict {
		err = errors.Join(err, c.removeRoutes())
	}
	if err = errors.Join(err, c.removeLock()); err == nil && c.Stay == nil {
		c.Log.Info("cleanup completed, removed the agent's programs, tunnel, routes and files: the agent no longer encrypts or spreads this node's traffic", "node", c.Node)
	}
	return err
}

// stay reports ready until ctx ends. It holds the lock, so that no agent adds anything meanwhile.
func (c *CleanupConfig) stay(ctx context.Context, strict bool) {
	if strict {
		c.Log.Info("cleanup completed except for blackhole routes, reporting ready: other nodes may refuse cleartext, so packets for their pods are dropped until this process is stopped", "node", c.Node)
	} else {
		c.Log.Info("cleanup completed, reporting ready until this process is stopped: the agent no longer encrypts or spreads this node's traffic", "node", c.Node)
	}
	c.Stay.setReady(true)
	<-ctx.Done()
}

// dropsCleartext reports whether packets for other nodes' pods are dropped while no tunnel runs: the routes of the last agent say so. If they
// cannot be read, it assumes that.
func dropsCleartext(log *slog.Logger) bool {
	routes, err := host.RouteTypes()
	if err != nil {
		log.Warn("reading the agent's routes failed, keeping them until the end of the cleanup: they may keep traffic from leaving in the clear", "error", err)
		return true
	}
	return routes[unix.RTN_BLACKHOLE] > 0
}

// withdraw empties the node's announcement, and reduces its status to a condition that it has no agent. It reports whether other nodes will learn of it.
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
	withdrawn := client.withdraw(ctx, c.Node)
	if withdrawn != nil && !apierrors.IsNotFound(withdrawn) {
		return withdrawn
	}
	err := client.apply(ctx, c.Node, v1alpha1.NodeStatus{AgentVersion: c.Version, Conditions: []metav1.Condition{{
		Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: reasonCleanedUp, LastTransitionTime: metav1.Now(),
		Message: "the node has no agent any more",
	}}})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return withdrawn
}

// removePrograms detaches from all devices, for any port.
func (c *CleanupConfig) removePrograms(ctx context.Context) error {
	host := &spreader.Host{FS: c.BPF}
	all, err := host.Status(ctx, "")
	if err = errors.Join(err, host.Detach(ctx, 0)); err != nil {
		return err
	}
	for _, d := range all {
		c.Log.Info("cleanup detached the spread and gather programs from a device, its tunnel uses one source port again", "device", d.Device)
	}
	return nil
}

// errAgentRuns means that an agent holds the lock of the key directory.
var errAgentRuns = errors.New("an agent runs on this host, nothing was removed: stop the agent first")

// takeLock lets this process alone change the host. It fails while an agent runs, or with Stay
// waits for its end.
func (c *CleanupConfig) takeLock(ctx context.Context, lock *instanceLock) error {
	if c.Stay != nil {
		lock.wait(ctx, &c.Config)
		return ctx.Err()
	}
	held, err := lock.try(c.KeyDir)
	if err != nil {
		c.Log.Warn("locking the agent's directory failed, cannot detect an agent: if one runs, it adds again what cleanup removes", "error", err)
		return nil
	}
	if !held {
		return fmt.Errorf("cleaning up: %w", errAgentRuns)
	}
	return nil
}

// removeTunnel deletes the interface if an engine of the mesh made it. The engine ends, and waits for another configuration.
func (c *CleanupConfig) removeTunnel() error {
	if err := c.Engine.Forget(); err != nil {
		return err
	}
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
	if err := tun.Remove(c.Tunnel); err != nil {
		return err
	}
	c.Log.Info("cleanup deleted the tunnel's interface", "interface", c.Tunnel)
	return nil
}

func (c *CleanupConfig) removeRoutes() error {
	if _, err := (host.System{}).SetPlaintextFilter(c.Tunnel, false, nil); err != nil {
		c.Log.Warn("cleanup could not remove the nftables table that drops unencrypted packets, leaving it: without the tunnel it drops nothing", "interface", c.Tunnel, "table", "inet "+host.FilterTable, "error", err)
	}
	if err := c.Guard.Remove(); err != nil {
		return err // it may drop what the routes still keep from leaving in the clear
	}
	n, err := (host.System{}).SetRoutes(c.Tunnel, nil)
	if n > 0 {
		c.Log.Info("cleanup removed the routes into the tunnel: traffic to other nodes leaves unencrypted from now on", "routes", n)
	}
	return err
}

// removeFiles removes the persisted state, and the keys if requested.
func (c *CleanupConfig) removeFiles() error {
	patterns := []string{stateFile + "*", "blackholes-*"}
	if c.RemoveKeys {
		patterns = append(patterns, "private*.key", "private*.key.*")
	}
	return c.removeMatching(patterns...)
}

// removeLock removes the lock's file, and the directory if it is empty then.
func (c *CleanupConfig) removeLock() error {
	if err := c.removeMatching(lockFile); err != nil {
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

// removeMatching removes files of the key directory.
func (c *CleanupConfig) removeMatching(patterns ...string) error {
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
	return errors.Join(errs...)
}
