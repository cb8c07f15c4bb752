// SPDX-License-Identifier: Apache-2.0

package uapi_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/control/uapi/uapitest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/test/expect"
)

var exact = cmp.Options{
	cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

func dial(t *testing.T, dir uapi.Dir, name string) *uapi.Client {
	t.Helper()
	c, err := dir.Dial(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// raw sends text on a new connection, closes its sending side, and returns the whole answer.
func raw(t *testing.T, dir uapi.Dir, text string) string {
	t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: string(dir) + "/wg0.sock"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	go func() {
		io.WriteString(conn, text)
		conn.CloseWrite()
	}()
	answer, err := io.ReadAll(conn)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatal(err)
	}
	return string(answer)
}

func serve(t *testing.T) (*uapitest.Device, uapi.Dir) {
	t.Helper()
	dev, dir := &uapitest.Device{}, uapitest.NewDir(t)
	uapitest.Serve(t, dir, "wg0", dev)
	return dev, dir
}

func TestClientReadsDeviceStatus(t *testing.T) {
	dev, dir := serve(t)
	c := dial(t, dir, "wg0")
	r := rand.New(rand.NewPCG(1, 1))
	for range 100 {
		want := uapitest.RandomStatus(r, "wg0", time.Now())
		dev.SetStatus(want)
		got, err := c.Status()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, exact); diff != "" {
			t.Fatal(diff)
		}
	}
}

func TestClientSendsOneChangeAsAWhole(t *testing.T) {
	dev, dir := serve(t)
	c := dial(t, dir, "wg0")
	want := config.Device{
		PrivateKey: new(noise.PrivateKey), ListenPort: new(uint16(7)), FwMark: new(uint32(8)), ReplacePeers: true,
		Peers: []config.Peer{{PublicKey: noise.PublicKey{1}, Remove: true}, {
			PublicKey: noise.PublicKey{2}, UpdateOnly: true, PresharedKey: &noise.PresharedKey{3}, Keepalive: new(uint16(9)),
			Endpoint:          &config.Endpoint{AddrPort: netip.MustParseAddrPort("[fe80::1]:2"), Scope: 5},
			ReplaceAllowedIPs: true, AllowedIPs: []config.AllowedIP{{Prefix: netip.MustParsePrefix("::/0"), Remove: true}},
		}},
	}
	if err := c.Configure(want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]config.Device{want}, dev.TakeChanges(), exact); diff != "" {
		t.Error(diff)
	}
}

// TestClientSendsNoInvalidNames has names that the daemon would refuse, or take for other lines.
func TestClientSendsNoInvalidNames(t *testing.T) {
	dev, dir := serve(t)
	c := dial(t, dir, "wg0")
	at := &config.Endpoint{AddrPort: netip.MustParseAddrPort("192.0.2.1:2")}
	for _, p := range []config.Peer{
		{Name: new(" begins with a space")},
		{Name: new("gateway\nremove=true")},
		{Endpoint: at, EndpointName: "no port"},
		{Endpoint: at, EndpointName: "a:1\nremove=true"},
	} {
		if err := c.Configure(config.Device{Peers: []config.Peer{p}}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%+v: got %v, want EINVAL", p, err)
		}
	}
	if got := dev.TakeChanges(); len(got) != 0 {
		t.Errorf("the device got %+v", got)
	}
}

func TestClientReadsStatsLongerThanALine(t *testing.T) {
	dev, dir := serve(t)
	want := map[string]string{"long": strings.Repeat("x\n", 10000)}
	dev.SetStats(want)
	c := dial(t, dir, "wg0")
	var got map[string]string
	if err := c.Stats(&got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	dev.SetStats(func() {}) // a func cannot be JSON
	if err := c.Stats(&got); !errors.Is(err, syscall.Errno(55)) {
		t.Error(err)
	}
	if _, err := c.Status(); err != nil {
		t.Errorf("after a refusal: %v", err)
	}
}

func TestClientGetsErrnoOfHandler(t *testing.T) {
	dev, dir := serve(t)
	c := dial(t, dir, "wg0")
	for _, tc := range []struct {
		err  error
		want syscall.Errno
	}{
		{fmt.Errorf("binding: %w", os.NewSyscallError("bind", syscall.EADDRINUSE)), syscall.EADDRINUSE},
		{&uapi.Error{Errno: syscall.EIO}, syscall.EIO},
		{errors.New("no idea"), syscall.Errno(55)},
	} {
		dev.Refuse(tc.err)
		err := c.Configure(config.Device{})
		if e, ok := errors.AsType[*uapi.Error](err); !ok || e.Errno != tc.want {
			t.Errorf("%v arrived as %v", tc.err, err)
		}
	}
	dev.Refuse(nil)
	if err := c.Configure(config.Device{}); err != nil {
		t.Error(err)
	}
}

func TestOneConnectionCarriesManyRequests(t *testing.T) {
	dev, dir := serve(t)
	dev.SetStatus(config.Status{ListenPort: 5})
	dev.SetStats([]int{1})
	got := raw(t, dir, "get=1\n\nset=1\nlisten_port=x\nfwmark=1\n\nset=1\nfwmark=2\n\nstats=1\n\nget=1\nmore\n\nget=1\n\n")
	want := "listen_port=5\nerrno=0\n\n" + "errno=-22\n\n" + "errno=0\n\n" + "[1]\nerrno=0\n\n" + "errno=-22\n\n" + "listen_port=5\nerrno=0\n\n"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]config.Device{{FwMark: new(uint32(2))}}, dev.TakeChanges(), exact); diff != "" {
		t.Errorf("applied changes differ from the valid request:\n%s", diff)
	}
}

func TestTruncatedRequestsAreNotApplied(t *testing.T) {
	dev, dir := serve(t)
	for _, text := range []string{"", "se", "set=1\n", "set=1\nlisten_port=5\n", "set=1\nlisten_port=5", "get=1\n"} {
		if got := raw(t, dir, text); got != "" {
			t.Errorf("%q was answered with %q", text, got)
		}
	}
	if changes := dev.TakeChanges(); len(changes) != 0 {
		t.Errorf("got changes %v applied, want none", changes)
	}
}

func TestUnknownOperationEndsTheConnection(t *testing.T) {
	_, dir := serve(t)
	for _, text := range []string{"hello\n\nget=1\n\n", "\nget=1\n\n", "get=2\n\nget=1\n\n"} {
		if got := raw(t, dir, text); got != "errno=-71\n\n" {
			t.Errorf("%q was answered with %q", text, got)
		}
	}
}

func TestOverlongLineEndsTheConnection(t *testing.T) {
	_, dir := serve(t)
	if got := raw(t, dir, "set=1\n"+strings.Repeat("x", 1<<20)); got != "errno=-7\n\n" && got != "" { // a reset may overtake it
		t.Errorf("answer %q", got)
	}
}

// pipes is a net.Listener whose clients are in-memory pipes, for tests with a fake clock.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	conn, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}
func (p pipes) Close() error   { close(p); return nil }
func (p pipes) Addr() net.Addr { return &net.UnixAddr{} }

// dial connects a client.
func (p pipes) dial() net.Conn {
	client, server := net.Pipe()
	p <- server
	return client
}

// serveListener serves clients of l until the caller calls end.
func serveListener(t *testing.T, l net.Listener, s *uapi.Server) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Serve(ctx, l) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestIdleClientsAreDisconnected(t *testing.T) {
	for _, tc := range []struct {
		sent, answer string
		want         time.Duration
	}{
		{"", "", 5 * time.Second},
		{"g", "", time.Minute},
		{"get=1\n\n", "errno=0\n\n", time.Minute},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := make(pipes)
			end := serveListener(t, l, &uapi.Server{Handler: &uapitest.Device{}})
			client := l.dial()
			start := time.Now()
			if _, err := io.WriteString(client, tc.sent); err != nil {
				t.Error(err)
			}
			if answer, err := io.ReadAll(client); err != nil || !strings.HasSuffix(string(answer), tc.answer) {
				t.Errorf("%q was answered with %q, %v", tc.sent, answer, err)
			}
			if idle := time.Since(start); idle != tc.want {
				t.Errorf("%q: disconnected after %v", tc.sent, idle)
			}
			end()
		})
	}
}

// TestStalledClientsMakeRoomForOthers has as many clients as are served at once, each of which stops somewhere in its request, or reads no answer.
func TestStalledClientsMakeRoomForOthers(t *testing.T) {
	for name, sent := range map[string]string{
		"silent": "", "within a line": "get=", "within a request": "set=1\nlisten_port=1\n", "without reading": "get=1\n\n",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := make(pipes)
				end := serveListener(t, l, &uapi.Server{Handler: &uapitest.Device{}})
				for range 64 {
					stalled := l.dial()
					defer stalled.Close()
					io.WriteString(stalled, sent)
				}
				synctest.Wait()
				start := time.Now()
				client := l.dial()
				go io.WriteString(client, "set=1\n\n")
				answer := make([]byte, len("errno=0\n\n"))
				if _, err := io.ReadFull(client, answer); err != nil || string(answer) != "errno=0\n\n" {
					t.Errorf("got answer %q, error %v, want no error", answer, err)
				}
				if waited := time.Since(start); waited != 0 {
					t.Errorf("answered after %v, want at once", waited)
				}
				client.Close()
				end()
			})
		})
	}
}

// TestLargeFailedRequestGivesItsMemoryBack: otherwise the process holds several times the size of the request.
func TestLargeFailedRequestGivesItsMemoryBack(t *testing.T) {
	_, dir := serve(t)
	const size = 8 << 20
	line := []byte("allowed_ip=10.0.0.0/8\n")
	request := slices.Concat([]byte("set=1\npublic_key="+strings.Repeat("a7", 32)+"\n"), bytes.Repeat(line, size/len(line)), []byte("nonsense=1\n\n"))
	answer := make([]byte, len("errno=-22\n\n"))
	conn, err := net.Dial("unix", string(dir)+"/wg0.sock")
	expect.NoError(t, err)
	defer conn.Close()
	debug.FreeOSMemory()
	before := heldMemory()
	_, err = conn.Write(request)
	expect.NoError(t, err)
	_, err = io.ReadFull(conn, answer)
	more := heldMemory() - before
	if err != nil || string(answer) != "errno=-22\n\n" {
		t.Errorf("got answer %q, error %v", answer, err)
	}
	if limit := int64(3 * size); more > limit { // the request's own garbage is more than twice that
		t.Errorf("got %d bytes more than before the request, want at most %d", more, limit)
	}
	runtime.KeepAlive(request)
}

// heldMemory returns how much memory Go's runtime has not returned to the kernel, in bytes.
func heldMemory() int64 {
	s := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64() - s[1].Value.Uint64())
}

func TestFailedRequestsAreLoggedAtLimitedRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := make(pipes)
		var log bytes.Buffer
		end := serveListener(t, l, &uapi.Server{Handler: &uapitest.Device{}, Log: slog.New(slog.NewTextHandler(&log, nil))})
		for range 1000 {
			client := l.dial()
			go io.WriteString(client, "get=2\n\n")
			if answer, err := io.ReadAll(client); err != nil || !strings.HasPrefix(string(answer), "errno=") {
				t.Fatalf("got answer %q, error %v", answer, err)
			}
			time.Sleep(100 * time.Millisecond) // the clock is fake
		}
		end()
		if n := strings.Count(log.String(), "request on the control socket failed"); n < 16 || n > 16+11 {
			t.Errorf("logged %d of 1000 failures in 100 s, want 16 and one each 10 s", n)
		}
	})
}

func TestServeClosesClientsWhenContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := make(pipes)
		end := serveListener(t, l, &uapi.Server{Handler: &uapitest.Device{}})
		var clients []net.Conn
		for range 64 { // as many as are served at once
			clients = append(clients, l.dial())
		}
		end()
		for _, client := range clients {
			if _, err := client.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Error("a client is still connected: ", err)
			}
		}
	})
}

// TestClientGetsItsAnswerAfterTheContextEnds: a daemon that ends, perhaps after a handover, answers the requests that it has read.
func TestClientGetsItsAnswerAfterTheContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := &uapi.Server{Handler: &uapitest.Device{}, Flows: func() any {
			cancel()
			synctest.Wait()
			return 7
		}}
		l := make(pipes)
		done := make(chan error)
		go func() { done <- s.Serve(ctx, l) }()
		client := l.dial()
		if _, err := io.WriteString(client, "flows=1\n\n"); err != nil {
			t.Fatal(err)
		}
		if answer, err := io.ReadAll(client); err != nil || string(answer) != "7\nerrno=0\n\n" {
			t.Errorf("got %q, error %v, want the answer", answer, err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestServeEndsDespiteClientThatReadsNothing has a client that does not read its answer when the context ends.
func TestServeEndsDespiteClientThatReadsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := make(pipes)
		end := serveListener(t, l, &uapi.Server{Handler: &uapitest.Device{}})
		client := l.dial()
		if _, err := io.WriteString(client, "get=1\n\n"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // until the answer is being written
		began := time.Now()
		end()
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("Serve ended after %s", took)
		}
	})
}

// shortage is a listener that runs out of descriptors once.
type shortage struct {
	pipes
	failed bool
}

func (s *shortage) Accept() (net.Conn, error) {
	if !s.failed {
		s.failed = true
		return nil, os.NewSyscallError("accept4", syscall.EMFILE)
	}
	return s.pipes.Accept()
}

func TestServeRetriesWhenOutOfDescriptors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &shortage{pipes: make(pipes)}
		end := serveListener(t, l, &uapi.Server{Handler: &uapitest.Device{}})
		l.dial().Close()
		end()
	})
}

func FuzzRequests(f *testing.F) {
	f.Add("get=1\n\nset=1\nlisten_port=x\n\nstats=1\n\n")
	f.Add("flows=1\n\nflows=1\nx\n\n")
	f.Add("set=1\npublic_key=00\n\n\n")
	f.Add("log=1\n\nlog=1\nlevel=debug\n\nlog=1\nlevel=loud\n\nlog=1\nx\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		l := make(pipes)
		end := serveListener(t, l, &uapi.Server{
			Handler: &uapitest.Device{}, Log: slog.New(slog.DiscardHandler), Level: new(slog.LevelVar), Flows: func() any { return nil },
		})
		client := l.dial()
		go func() {
			io.WriteString(client, text)
			client.Close()
		}()
		answer, _ := io.ReadAll(client)
		end()
		if len(answer) > 0 && !slices.ContainsFunc([]string{"errno=", "null\nerrno=", "level="}, func(s string) bool {
			return strings.HasPrefix(string(answer), s)
		}) {
			t.Errorf("answer %q", answer)
		}
	})
}

// TestMemoryOfLargeAnswersIsReturned waits for a garbage collection that the server forces.
func TestMemoryOfLargeAnswersIsReturned(t *testing.T) {
	dev := new(uapitest.Device)
	peers := make([]config.PeerStatus, 10_000)
	for i := range peers {
		peers[i].PublicKey = noise.PublicKey{byte(i), byte(i >> 8), 1}
	}
	dev.SetStatus(config.Status{Peers: peers})
	dir := uapitest.NewDir(t)
	uapitest.Serve(t, dir, "wg0", dev)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := uapitest.Dial(t, dir, "wg0").Status(); err != nil {
		t.Fatal(err)
	}
	expect.EventuallyNoError(t, "a forced garbage collection", func() error {
		if runtime.ReadMemStats(&after); after.NumForcedGC == before.NumForcedGC {
			return errors.New("none")
		}
		return nil
	})
}
