// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"github.com/ropewalk/ropewalk/test/expect"
)

// The names of the agents' objects.
const (
	spreadAgent = "ropewalk-spread"
	meshAgent   = "ropewalk-mesh"
)

const (
	namespace = "ropewalk-system"
	patience  = 3 * time.Minute // also on a busy machine
)

// api is a running API server with the manifests that an administrator applies before the agents.
type api struct {
	*testing.T
	cfg     *rest.Config
	clients kubernetes.Interface
	dynamic dynamic.Interface
	mapper  *restmapper.DeferredDiscoveryRESTMapper
	account string // of the agents: that of the mode
}

func startAPI(t *testing.T) *api {
	t.Helper()
	server, err := sharedServer()
	if err != nil {
		t.Fatal(err)
	}
	cfg := rest.CopyConfig(server)
	cfg.QPS, cfg.Burst = 500, 500
	a := &api{T: t, cfg: cfg, clients: kubernetes.NewForConfigOrDie(cfg), dynamic: dynamic.NewForConfigOrDie(cfg), account: spreadAgent}
	a.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(a.clients.Discovery()))
	for _, r := range []schema.GroupVersionResource{rwnodes, rwannouncements, rwpeers, rwmeshes} {
		a.applyFile(filepath.Join("..", "..", "deploy", "crd", "ropewalk.io_"+r.Resource+".yaml"))
		expect.EventuallyNoError(a, "the definition is established", func() error {
			_, err := a.dynamic.Resource(r).List(t.Context(), metav1.ListOptions{})
			return err
		})
	}
	a.applyFile(kustomized("spread"))
	a.clear() // remove what the last test left
	return a
}

var (
	rwnodes         = schema.GroupVersionResource{Group: "ropewalk.io", Version: "v1alpha1", Resource: "ropewalknodes"}
	rwannouncements = schema.GroupVersionResource{Group: "ropewalk.io", Version: "v1alpha1", Resource: "ropewalkannouncements"}
	rwpeers         = schema.GroupVersionResource{Group: "ropewalk.io", Version: "v1alpha1", Resource: "ropewalkpeers"}
	rwmeshes        = schema.GroupVersionResource{Group: "ropewalk.io", Version: "v1alpha1", Resource: "ropewalkmeshes"}
)

// applyFile applies the objects of a file.
func (a *api) applyFile(path string) {
	a.Helper()
	for _, o := range manifest(a, path) {
		expect.NoError(a, a.apply(o))
	}
}

// apply does what `kubectl apply --server-side` does, with the API server's validation. The error may vanish once the object's
// kind is established.
func (a *api) apply(o *unstructured.Unstructured) error {
	a.Helper()
	a.mapper.Reset()
	m, err := a.mapper.RESTMapping(o.GroupVersionKind().GroupKind(), o.GroupVersionKind().Version)
	if err != nil {
		return err
	}
	var r dynamic.ResourceInterface = a.dynamic.Resource(m.Resource)
	if o.GetNamespace() != "" {
		r = a.dynamic.Resource(m.Resource).Namespace(o.GetNamespace())
	}
	_, err = r.Apply(a.Context(), o.GetName(), o, metav1.ApplyOptions{FieldManager: "test", Force: true})
	if apierrors.IsInvalid(err) {
		a.Fatal(err)
	}
	return err
}

// clear deletes the cluster's objects: tests share the API server.
func (a *api) clear() {
	ctx := context.Background()
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	err := errors.Join(
		a.clients.CoreV1().Nodes().DeleteCollection(ctx, now, metav1.ListOptions{}),
		a.dynamic.Resource(rwnodes).DeleteCollection(ctx, now, metav1.ListOptions{}),
		a.dynamic.Resource(rwannouncements).DeleteCollection(ctx, now, metav1.ListOptions{}),
		a.dynamic.Resource(rwpeers).DeleteCollection(ctx, now, metav1.ListOptions{}),
		a.dynamic.Resource(rwmeshes).DeleteCollection(ctx, now, metav1.ListOptions{}),
		a.clients.CoreV1().Pods(namespace).DeleteCollection(ctx, now, metav1.ListOptions{}),
	)
	if err != nil {
		a.Error(err)
	}
}

// token returns a token of the agents' account, without the claim of a node.
func (a *api) token() string {
	a.Helper()
	tr, err := a.clients.CoreV1().ServiceAccounts(namespace).CreateToken(a.Context(), a.account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	expect.NoError(a, err)
	return tr.Status.Token
}

// door is the nodes' access to the API server: a listener in their network namespace.
type door struct {
	a      *api
	open   func() (net.Listener, error)
	target string
	sent   atomic.Int64 // bytes from the API server

	mu    sync.Mutex
	l     net.Listener
	conns map[net.Conn]bool
}

func (a *api) newDoor(open func() (net.Listener, error)) *door {
	u, err := url.Parse(a.cfg.Host)
	expect.NoError(a, err)
	target := u.Host
	if target == "" {
		target = strings.TrimPrefix(a.cfg.Host, "https://")
	}
	d := &door{a: a, open: open, target: target, conns: map[net.Conn]bool{}}
	d.unlock()
	a.Cleanup(d.lock)
	return d
}

// unlock accepts connections.
func (d *door) unlock() {
	l, err := d.open()
	expect.NoError(d.a, err)
	d.mu.Lock()
	d.l = l
	d.mu.Unlock()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go d.pass(c)
		}
	}()
}

// lock closes all connections and accepts no new ones.
func (d *door) lock() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.l != nil {
		d.l.Close()
	}
	d.l = nil
	for c := range d.conns {
		c.Close()
	}
}

// counting counts the bytes that are written.
type counting struct {
	io.Writer
	bytes *atomic.Int64
}

func (c counting) Write(b []byte) (int, error) {
	n, err := c.Writer.Write(b)
	c.bytes.Add(int64(n))
	return n, err
}

func (d *door) pass(c net.Conn) {
	s, err := new(net.Dialer).DialContext(context.Background(), "tcp", d.target)
	if err != nil {
		c.Close()
		return
	}
	d.mu.Lock()
	if d.l == nil { // it was locked meanwhile
		d.mu.Unlock()
		c.Close()
		s.Close()
		return
	}
	d.conns[c], d.conns[s] = true, true
	d.mu.Unlock()
	var both sync.WaitGroup
	for to, from := range map[io.Writer]net.Conn{counting{c, &d.sent}: s, s: c} {
		both.Go(func() {
			_, _ = io.Copy(to, from)
			c.Close()
			s.Close()
		})
	}
	both.Wait()
	d.mu.Lock()
	delete(d.conns, c)
	delete(d.conns, s)
	d.mu.Unlock()
}
