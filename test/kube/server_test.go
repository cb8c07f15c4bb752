// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"log"
	"os"
	"runtime"
	"sync"
	"testing"

	etcdserver "k8s.io/apiserver/pkg/storage/etcd3/testserver"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	kubeapiservertesting "k8s.io/kubernetes/cmd/kube-apiserver/app/testing"
)

// outlives is a testing.TB that lasts beyond the test that starts something with it.
type outlives struct {
	testing.TB // nil: only the methods below are used

	mu      sync.Mutex
	cleanup []func()
	failed  error
}

func (o *outlives) Helper()                  {}
func (o *outlives) Name() string             { return "shared" }
func (o *outlives) Context() context.Context { return context.Background() }
func (o *outlives) Failed() bool             { return o.failed != nil }
func (o *outlives) Log(...any)               {}
func (o *outlives) Logf(string, ...any)      {}

func (o *outlives) Error(args ...any)                 { log.Print(args...) }
func (o *outlives) Errorf(format string, args ...any) { log.Printf(format, args...) }
func (o *outlives) Fatal(args ...any)                 { o.end(fmt.Errorf("%s", fmt.Sprint(args...))) }
func (o *outlives) Fatalf(format string, args ...any) { o.end(fmt.Errorf(format, args...)) }

func (o *outlives) end(err error) {
	o.failed = err
	runtime.Goexit()
}

func (o *outlives) Cleanup(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.cleanup = append(o.cleanup, f)
}

func (o *outlives) TempDir() string {
	dir, err := os.MkdirTemp("", "kube")
	if err != nil {
		o.Fatal(err)
	}
	o.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// close runs the cleanups, the last one first.
func (o *outlives) close() {
	o.mu.Lock()
	all := o.cleanup
	o.cleanup = nil
	o.mu.Unlock()
	for i := len(all) - 1; i >= 0; i-- {
		all[i]()
	}
}

// suite is shared by all tests, and closed after the last one.
var suite = &outlives{}

// sharedServer starts an API server with an administrator's credentials. That takes four seconds.
var sharedServer = sync.OnceValues(func() (cfg *rest.Config, err error) {
	done := make(chan struct{})
	go func() { // in a goroutine that Fatal may end
		defer close(done)
		cfg = startServer(suite)
	}()
	<-done
	return cfg, suite.failed
})

// startServer is apiserver.StartAPITestServer of Kubernetes' tests, with the authorization of real clusters.
func startServer(t testing.TB) *rest.Config {
	etcd := etcdserver.RunEtcd(t, etcdserver.NewTestConfig(t))
	storage := storagebackend.NewDefaultConfig("/registry", nil)
	storage.Transport.ServerList = etcd.Endpoints()
	server := kubeapiservertesting.StartTestServerOrDie(t, nil, []string{"--authorization-mode=RBAC"}, storage)
	t.Cleanup(server.TearDownFn)
	cfg := rest.CopyConfig(server.ClientConfig)
	cfg.ServerName = "" // that of its loopback certificate
	certs, _, err := cert.GetServingCertificatesForURL(cfg.Host, "")
	if err == nil {
		cfg.CAData, err = cert.EncodeCertificates(certs...)
	}
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}
