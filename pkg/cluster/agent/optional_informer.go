// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
)

// optionalInformer follows objects without which agents work: there may be no such resource, or no right to read it. The objects are
// unknown then.
type optionalInformer struct{ cache.SharedIndexInformer }

// optionalRetryPeriod is the time between two attempts to list objects while the API server has no such resource, or refuses.
const optionalRetryPeriod = 5 * time.Minute

// newOwnInformer returns an informer of ropewalk's own objects that calls changed after each change of a definition.
func newOwnInformer(c *client, resource string, object runtime.Object, log *slog.Logger, changed func()) (*optionalInformer, error) {
	return newOptionalInformer(cache.NewListWatchFromClient(c.own, resource, "", fields.Everything()), resource, object, log, changed)
}

// newOptionalInformer returns an informer that calls changed after each change of a definition:
// of the generation, which the API server also counts for EndpointSlices.
func newOptionalInformer(list cache.ListerWatcher, resource string, object runtime.Object, log *slog.Logger, changed func()) (*optionalInformer, error) {
	o := &optionalInformer{cache.NewSharedIndexInformer(list, object, 0, nil)}
	err := errors.Join(o.SetTransform(trimObject), o.SetWatchErrorHandlerWithContext(delayRefusedLists(resource, log)), notifyOfDefinitions(o, changed))
	if err != nil {
		return nil, fmt.Errorf("setting up the informer of %s: %w", resource, err)
	}
	return o, nil
}

// delayRefusedLists returns a handler that waits after a refused list: thousands of agents must not repeat it every few seconds.
func delayRefusedLists(resource string, log *slog.Logger) cache.WatchErrorHandlerWithContext {
	return func(ctx context.Context, r *cache.Reflector, err error) {
		if !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
			cache.DefaultWatchErrorHandler(ctx, r, err)
			return
		}
		log.Warn("listing the objects of an optional resource failed, keeping the last known objects and retrying", "resource", resource, "after", optionalRetryPeriod, "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(optionalRetryPeriod):
		}
	}
}

// notifyOfDefinitions has an informer call changed after each change of a definition.
func notifyOfDefinitions(i cache.SharedIndexInformer, changed func()) error {
	_, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { changed() }, DeleteFunc: func(any) { changed() },
		UpdateFunc: func(before, after any) {
			if !sameDefinition(before, after) {
				changed()
			}
		},
	})
	return err
}

// sameDefinition reports whether an update changes the status only.
func sameDefinition(before, after any) bool {
	a, okA := before.(metav1.Object)
	b, okB := after.(metav1.Object)
	return okA && okB && a.GetUID() == b.GetUID() && a.GetGeneration() == b.GetGeneration() && a.GetDeletionTimestamp().Equal(b.GetDeletionTimestamp())
}
