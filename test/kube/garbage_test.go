// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/restmapper"
	"k8s.io/controller-manager/pkg/informerfactory"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"

	"github.com/ropewalk/ropewalk/test/expect"
)

// collectGarbage runs Kubernetes' garbage collector until the test ends.
func (a *api) collectGarbage() {
	a.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	objects := metadata.NewForConfigOrDie(a.cfg)
	shared, all := informers.NewSharedInformerFactory(a.clients, 0), metadatainformer.NewSharedInformerFactory(objects, 0)
	started := make(chan struct{})
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(a.clients.Discovery()))
	gc, err := garbagecollector.NewGarbageCollector(ctx, a.clients, objects, mapper, garbagecollector.DefaultIgnoredResources(), informerfactory.NewInformerFactory(shared, all), started)
	expect.NoError(a, err)
	var running sync.WaitGroup
	running.Go(func() { gc.Run(ctx, 1, time.Minute) })
	running.Go(func() { gc.Sync(ctx, a.clients.Discovery(), time.Second) })
	shared.Start(ctx.Done())
	all.Start(ctx.Done())
	close(started)
	a.Cleanup(func() {
		cancel()
		running.Wait()
	})
}

// TestObjectsGoWithTheirNode: a Node that is deleted takes along what its agent has written, although that agent runs on.
func TestObjectsGoWithTheirNode(t *testing.T) {
	l, _ := newMesh(t, 2)
	gone, stays := l.nodes[1], l.nodes[0]
	l.collectGarbage()
	expect.NoError(l, l.clients.CoreV1().Nodes().Delete(t.Context(), gone.name, metav1.DeleteOptions{}))
	resources := []schema.GroupVersionResource{rwnodes, rwannouncements}
	for _, r := range resources {
		expect.EventuallyNoError(l, "Kubernetes deletes its "+r.Resource, func() error {
			_, err := l.dynamic.Resource(r).Get(t.Context(), gone.name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return errors.Join(errors.New("it exists"), err)
		})
	}
	expect.EventuallyNoError(l, stays.name+" has no peer any more", func() error {
		if peers := stays.gauge("peers"); peers != 0 {
			return fmt.Errorf("it has %d", peers)
		}
		return nil
	})
	for _, r := range resources {
		_, err := l.dynamic.Resource(r).Get(t.Context(), stays.name, metav1.GetOptions{})
		expect.NoError(l, err)
	}
}
