// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vishvananda/netlink"
	"k8s.io/client-go/rest"

	"github.com/ropewalk/ropewalk/pkg/cluster/host"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab/netlabtest"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
)

// emptyHost returns a host with nothing but a loopback device, and a tunnel name that no other host of the machine has.
func emptyHost(t *testing.T) (h *netlab.Host, tunnel string) {
	t.Helper()
	lab, hosts := netlabtest.Hosts(t, "cleanup", "node")
	return hosts[0], "c" + lab.Tag()
}

func in(t *testing.T, h *netlab.Host, f func() error) {
	t.Helper()
	if err := h.Do(f); err != nil {
		t.Fatal(err)
	}
}

func cleanupOf(t *testing.T, tunnel string) CleanupConfig {
	t.Helper()
	return CleanupConfig{Config: Config{
		MeshConfig: MeshConfig{Tunnel: tunnel, EngineConfig: filepath.Join(t.TempDir(), "tunnel.conf")}, KeyDir: filepath.Join(t.TempDir(), "keys"), Log: slog.New(slog.DiscardHandler), Propagation: time.Nanosecond,
	}}
}

// TestCleanupFailsBesideAgent has a running agent hold its lock.
func TestCleanupFailsBesideAgent(t *testing.T) {
	h, _ := emptyHost(t)
	in(t, h, func() error {
		c := cleanupOf(t, "tunnel")
		if _, err := (host.System{}).SetRoutes("tunnel", &host.Routing{Routes: []netip.Prefix{netip.MustParsePrefix("10.244.2.0/24")}}); err != nil {
			return err
		}
		var agent instanceLock
		if held, err := agent.try(c.KeyDir); err != nil || !held {
			t.Fatal(held, err)
		}
		if err := Cleanup(t.Context(), c); !errors.Is(err, errAgentRuns) {
			t.Errorf("beside an agent: %v", err)
		}
		if have, err := host.RouteTypes(); err != nil || len(have) == 0 {
			t.Errorf("routes %v, %v", have, err)
		}
		agent.release()
		return Cleanup(t.Context(), c)
	})
}

// addTunnel adds the persistent interface that a killed agent leaves.
func addTunnel(name string) error {
	d, err := tun.Open(tun.Config{Name: name, Queues: 1, Persist: true})
	if err != nil {
		return err
	}
	if err := d.Close(); err != nil {
		return err
	}
	return hostnet.SetLinkUp(name, tun.DefaultMTU)
}

// addForeignTunnel adds a persistent interface of the same kind that another program made.
func addForeignTunnel(name string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	return netlink.LinkAdd(&netlink.Tuntap{LinkAttrs: attrs, Mode: netlink.TUNTAP_MODE_TUN})
}

func TestCleanupRemovesTunnelAndRoutes(t *testing.T) {
	h, tunnel := emptyHost(t)
	c := cleanupOf(t, tunnel)
	pods := []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}
	in(t, h, func() error {
		if err := addTunnel(tunnel); err != nil {
			return err
		}
		if _, err := (host.System{}).SetRoutes(tunnel, &host.Routing{Routes: pods}); err != nil {
			return err
		}
		for range 2 { // the second time, nothing is left to remove
			if err := Cleanup(t.Context(), c); err != nil {
				return err
			}
		}
		if _, err := netlink.LinkByName(tunnel); !errors.As(err, new(netlink.LinkNotFoundError)) {
			t.Errorf("the tunnel still exists: %v", err)
		}
		if left, err := host.RouteTypes(); err != nil || len(left) > 0 {
			t.Errorf("routes are left: got %v, error %v, want no error", left, err)
		}
		return nil
	})
}

func TestCleanupKeepsForeignInterfaces(t *testing.T) {
	h, tunnel := emptyHost(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = tunnel
	for what, add := range map[string]func() error{
		"bridge":                     func() error { return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}) },
		"not a persistent interface": func() error { return addForeignTunnel(tunnel) },
	} {
		in(t, h, func() error {
			if err := add(); err != nil {
				return err
			}
			if err := Cleanup(t.Context(), cleanupOf(t, tunnel)); err == nil || !strings.Contains(err.Error(), what) {
				t.Errorf("another program's interface: got error %v, want an error", err)
			}
			l, err := netlink.LinkByName(tunnel)
			if err != nil {
				return err
			}
			return netlink.LinkDel(l)
		})
	}
}

func TestTearDownRemovesOnlyOwnTunnel(t *testing.T) {
	h, tunnel := emptyHost(t)
	m := newMeshReconciler(Config{MeshConfig: MeshConfig{Tunnel: tunnel, EngineConfig: filepath.Join(t.TempDir(), "tunnel.conf")}, Log: slog.New(slog.DiscardHandler)}.withDefaults(), nil, nil, func() {})
	attrs := netlink.NewLinkAttrs()
	attrs.Name = tunnel
	for _, c := range []struct {
		what  string
		add   func() error
		stays bool
	}{
		{"a bridge", func() error { return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}) }, true},
		{"another program's TUN", func() error { return addForeignTunnel(tunnel) }, true},
		{"left by an agent", func() error { return addTunnel(tunnel) }, false},
		{"nothing", func() error { return nil }, false},
	} {
		in(t, h, func() error {
			if err := errors.Join(c.add(), m.tearDown(t.Context())); err != nil {
				return err
			}
			l, err := netlink.LinkByName(tunnel)
			if there := err == nil; there != c.stays {
				t.Errorf("%s is there: got %v, error %v, want %v", c.what, there, err, c.stays)
			}
			if err == nil {
				return netlink.LinkDel(l)
			}
			return nil
		})
	}
}

func TestCleanupRemovesKeysOnRequest(t *testing.T) {
	h, tunnel := emptyHost(t)
	for _, c := range []struct {
		name        string
		keys        bool
		there, left []string
	}{
		{"not asked", false, []string{"agent.json", "private.key"}, []string{"private.key"}},
		{"asked", true, []string{"agent.json", "private.key", "private-2.key", "private.key.12345"}, nil},
		{"others' files", true, []string{"private.key", "readme"}, []string{"readme"}},
		{"nothing", true, nil, nil},
	} {
		cfg := cleanupOf(t, tunnel)
		cfg.RemoveKeys = c.keys
		for _, name := range c.there {
			err := errors.Join(os.MkdirAll(cfg.KeyDir, 0o700), os.WriteFile(filepath.Join(cfg.KeyDir, name), nil, 0o600))
			if err != nil {
				t.Fatal(err)
			}
		}
		in(t, h, func() error { return Cleanup(t.Context(), cfg) })
		entries, err := os.ReadDir(cfg.KeyDir)
		if err != nil && !errors.Is(err, os.ErrNotExist) || err == nil && len(c.left) == 0 {
			t.Errorf("%s: the directory: %v", c.name, err)
		}
		var left []string
		for _, e := range entries {
			left = append(left, e.Name())
		}
		if !slices.Equal(left, c.left) {
			t.Errorf("%s: left %v, want %v", c.name, left, c.left)
		}
	}
}

// serverAnswering returns an API server that answers with the given codes in turn, repeating the last. It calls onRequest before
// each.
func serverAnswering(t *testing.T, onRequest func(*http.Request), codes ...int) *rest.Config {
	t.Helper()
	var mu sync.Mutex
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		onRequest(r)
		code := codes[0]
		codes = codes[min(1, len(codes)-1):]
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = io.WriteString(w, `{"apiVersion":"v1","kind":"Status","status":"Failure","code":`+strconv.Itoa(code)+`,"reason":"`+strings.ReplaceAll(http.StatusText(code), " ", "")+`"}`)
	}))
	t.Cleanup(server.Close)
	return &rest.Config{Host: server.URL}
}

func TestCleanupPublishesBeforeRemoving(t *testing.T) {
	h, tunnel := emptyHost(t)
	for code, about := range map[int]string{
		http.StatusOK: "published", http.StatusNotFound: "no objects", http.StatusForbidden: "forbidden",
		http.StatusUnprocessableEntity: "rejected by an admission policy",
	} {
		cfg := cleanupOf(t, tunnel)
		saved := filepath.Join(cfg.KeyDir, stateFile)
		if err := errors.Join(os.MkdirAll(cfg.KeyDir, 0o700), os.WriteFile(saved, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		var paths []string
		var empties, conditions bool
		var before error // of os.Stat of the saved state when the status was published
		cfg.API = serverAnswering(t, func(r *http.Request) {
			var body map[string]any
			_ = json.NewDecoder(r.Body).Decode(&body)
			paths = append(paths, path.Base(path.Dir(r.URL.Path))+"/"+path.Base(r.URL.Path))
			_, before = os.Stat(saved)
			spec, has := body["spec"]
			status, _ := body["status"].(map[string]any)
			empties, conditions = empties || has && spec == nil, conditions || status["conditions"] != nil
		}, code)
		cfg.Node = "n1"
		in(t, h, func() error { return Cleanup(t.Context(), cfg) })
		want := []string{"ropewalkannouncements/n1", "n1/status"}
		if code != http.StatusOK && code != http.StatusNotFound {
			want = want[:1]
		}
		if !slices.Equal(paths, want) || !empties || conditions != (len(want) == 2) {
			t.Errorf("%s: wrote %v", about, paths)
		}
		if _, after := os.Stat(saved); before != nil || !errors.Is(after, os.ErrNotExist) {
			t.Errorf("%s: saved state: got stat error %v when publishing, %v at the end; want none, %v", about, before, after, os.ErrNotExist)
		}
	}
}

func TestCleanupRetriesPublishing(t *testing.T) {
	tries := 0
	c := CleanupConfig{Config: Config{Node: "n1", Log: slog.New(slog.DiscardHandler), Propagation: time.Nanosecond}}
	c.API = serverAnswering(t, func(*http.Request) { tries++ }, http.StatusInternalServerError, http.StatusUnauthorized, http.StatusOK)
	if published, err := c.withdraw(t.Context()); !published || err != nil || tries != 4 {
		t.Errorf("after %d tries: %v", tries, err)
	}
}

// answering is a transport whose server is a function.
type answering func(*http.Request) (*http.Response, error)

func (a answering) RoundTrip(r *http.Request) (*http.Response, error) { return a(r) }

func TestUnansweredWriteTimesOut(t *testing.T) {
	for what, server := range map[string]answering{
		"never answers": func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		},
		"returns Retry-After": func(r *http.Request) (*http.Response, error) {
			h := http.Header{"Retry-After": []string{"120"}}
			return &http.Response{StatusCode: http.StatusTooManyRequests, Header: h, Body: http.NoBody, Request: r}, nil
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			c, err := newClient(&rest.Config{Host: "http://192.0.2.1", Transport: server})
			if err != nil {
				t.Fatal(err)
			}
			for _, write := range []func() error{
				func() error { _, err := c.create(t.Context(), parseNode(t, aNode)); return err },
				func() error { return c.apply(t.Context(), "n1", v1alpha1.NodeStatus{}) },
				func() error { return c.announce(t.Context(), parseNode(t, aNode), v1alpha1.AnnouncementSpec{}) },
				func() error { return c.withdraw(t.Context(), "n1") },
			} {
				began := time.Now()
				if err, took := write(), time.Since(began); err == nil || took > apiWriteTimeout {
					t.Errorf("server that %s: the write took %s: got error %v, want an error", what, took, err)
				}
			}
		})
	}
}

func TestCleanupProceedsWithoutAPI(t *testing.T) {
	tries := 0
	c := CleanupConfig{Config: Config{Node: "n1", Log: slog.New(slog.DiscardHandler)}, PublishTimeout: 10 * time.Millisecond}
	c.API = serverAnswering(t, func(*http.Request) { tries++ }, http.StatusInternalServerError)
	if published, err := c.withdraw(t.Context()); published || err == nil || t.Context().Err() != nil {
		t.Errorf("after %d tries: got error %v, want an error", tries, err)
	}
}
