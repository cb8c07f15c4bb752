// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
)

// The agent of the oldest node writes the status of all RopewalkConfigs, or the next one if it has not after a while, as for RopewalkPeers
// (external_status.go). It counts the nodes by their RopewalkNodes, which say what each follows.

// maxNamedNodes bounds the names in a condition's message.
const maxNamedNodes = 10

// configStatus remembers what an agent knows about the status of RopewalkConfigs, by name.
type configStatus struct {
	outdated map[string]outdatedConfig
	written  map[string]writtenConfig
}

// outdatedConfig is a RopewalkConfig whose status is wrong.
type outdatedConfig struct {
	version string // resourceVersion: no agent has written the status since
	since   time.Time
}

// writtenConfig is a status that the agent wrote.
type writtenConfig struct {
	uid    types.UID // of the RopewalkConfig
	status v1alpha1.ConfigStatus
	at     time.Time
}

// configWriterTimeout is the time per older node after which an agent writes a status in its place. Counts change all the time while nodes
// follow a change, and the older node's agent writes them after minWriteInterval.
const configWriterTimeout = minWriteInterval + writerTimeout

// publishConfigs writes the status of the RopewalkConfigs if this agent is the one to do so. It requests a reconcile after
// minWriteInterval, since the progress of other nodes requests none.
func (a *Agent) publishConfigs(ctx context.Context, self mesh.Node, nodes []mesh.Node) {
	rank := mesh.AgentRank(&self, nodes)
	if rank >= maxStatusWriters || len(nodes) == 0 || !a.cluster.configs.HasSynced() {
		return
	}
	before, now, writes, failed := a.configs, time.Now(), 0, false
	a.configs = configStatus{outdated: map[string]outdatedConfig{}, written: map[string]writtenConfig{}}
	reported := a.cluster.ropewalkNodes()
	for _, p := range a.cluster.configs.all() {
		a.queue.AddAfter(clusterChanged, minWriteInterval)
		rc := p.object
		have := rc.Status
		w, isRecent := before.lastWrite(rc, now)
		if isRecent {
			a.configs.written[rc.Name], have = w, w.status
		}
		want := configStatusOf(&p, have, reported)
		if sameConfigStatus(have, want) {
			continue
		}
		o := before.outdatedSince(rc, now)
		a.configs.outdated[rc.Name] = o
		switch {
		case isRecent && have.ObservedGeneration == rc.Generation, now.Sub(o.since) < time.Duration(rank)*configWriterTimeout:
		case failed: // the others would wait for the same API server
		case writes >= maxStatusWrites:
			a.queue.AddAfter(clusterChanged, moreWritesAfter)
		default:
			writes++
			failed = !a.writeConfigStatus(ctx, rc, have, want, now)
		}
	}
}

// lastWrite returns the last status that this agent wrote, if that was a moment ago.
func (s *configStatus) lastWrite(rc *v1alpha1.RopewalkConfig, now time.Time) (w writtenConfig, isRecent bool) {
	w, ok := s.written[rc.Name]
	return w, ok && w.uid == rc.UID && now.Sub(w.at) < minWriteInterval
}

// outdatedSince returns since when a status has been wrong without a write.
func (s *configStatus) outdatedSince(rc *v1alpha1.RopewalkConfig, now time.Time) outdatedConfig {
	if o, ok := s.outdated[rc.Name]; ok && o.version == rc.ResourceVersion {
		return o
	}
	return outdatedConfig{rc.ResourceVersion, now}
}

// writeConfigStatus writes a status, and an Event for a condition that changes for the worse. After a failure, which is logged and
// retried, it returns false.
func (a *Agent) writeConfigStatus(ctx context.Context, rc *v1alpha1.RopewalkConfig, have, want v1alpha1.ConfigStatus, now time.Time) bool {
	if err := a.client.applyStatus(ctx, v1alpha1.ConfigResource, v1alpha1.ConfigKind, rc.Name, want); err != nil {
		a.cfg.Log.Warn("writing the status of a RopewalkConfig failed, retrying", "config", rc.Name, "after", minWriteInterval, "error", err)
		return false
	}
	a.configs.written[rc.Name] = writtenConfig{rc.UID, want, now}
	delete(a.configs.outdated, rc.Name)
	for i := range want.Conditions {
		c := &want.Conditions[i]
		worse := (c.Type == v1alpha1.ConditionConflict) == (c.Status == metav1.ConditionTrue)
		if worse && !meta.IsStatusConditionPresentAndEqual(have.Conditions, c.Type, c.Status) {
			a.createEvent(ctx, regarding{v1alpha1.ConfigKind, rc.Name, rc.UID}, "Warning", c.Reason, c.Message)
		}
	}
	return true
}

// configStatusOf returns the status of a RopewalkConfig. have is the one before.
func configStatusOf(p *parsedConfig, have v1alpha1.ConfigStatus, nodes []*v1alpha1.RopewalkNode) v1alpha1.ConfigStatus {
	name := p.object.Name
	st := v1alpha1.ConfigStatus{ObservedGeneration: p.object.Generation}
	var refusing, rivals []string
	for _, rn := range nodes {
		f := rn.Status.Config
		switch {
		case f == nil:
			continue
		case f.Name != name:
			if slices.Contains(f.ConflictsWith, name) {
				rivals = append(rivals, f.Name)
			}
			continue
		case f.Generation != p.object.Generation || f.State == v1alpha1.ConfigPending:
			st.PendingNodes++
		case f.State == v1alpha1.ConfigRefused:
			st.RefusingNodes++
			refusing = append(refusing, rn.Name)
		default:
			st.FollowingNodes++
		}
		rivals = append(rivals, f.ConflictsWith...)
	}
	st.Conditions = []metav1.Condition{acceptedConfig(p, refusing), conflictOf(rivals)}
	for i := range st.Conditions {
		st.Conditions[i].ObservedGeneration = p.object.Generation
		st.Conditions[i] = withTransitionTime(st.Conditions[i], have.Conditions)
	}
	return st
}

func acceptedConfig(p *parsedConfig, refusing []string) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonRefused}
	switch n := len(refusing); {
	case p.invalid != "":
		c.Reason, c.Message = v1alpha1.ReasonInvalid, p.invalid
	case n == 0:
		c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.ReasonAccepted
	default:
		slices.Sort(refusing)
		c.Message = fmt.Sprintf("%d nodes cannot apply it, their RopewalkNodes have the reason: %s", n, strings.Join(refusing[:min(n, maxNamedNodes)], ", "))
	}
	return c
}

func conflictOf(rivals []string) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionConflict, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNoConflict}
	if len(rivals) > 0 {
		slices.Sort(rivals)
		rivals = slices.Compact(rivals)
		c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.ReasonConflict
		c.Message = "some nodes are selected by others of the same priority, of which the oldest applies: " + strings.Join(rivals[:min(len(rivals), maxNamedNodes)], ", ")
	}
	return c
}

// sameConfigStatus reports whether two status differ at most in transition times.
func sameConfigStatus(a, b v1alpha1.ConfigStatus) bool {
	a, b = *a.DeepCopy(), *b.DeepCopy()
	for _, all := range [][]metav1.Condition{a.Conditions, b.Conditions} {
		for i := range all {
			all[i].LastTransitionTime = metav1.Time{}
		}
	}
	return reflect.DeepEqual(a, b)
}
