// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/crypto/bcrypt"

	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/test/expect"
)

// testServer serves d on a port of the loopback until the test ends.
func testServer(t *testing.T, d Device, o Options, webConfig string) (addr string) {
	t.Helper()
	s, err := Listen(ServerConfig{Addr: "127.0.0.1:0", WebConfig: webConfig, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- s.Serve(ctx, Content{
			Version:    "v1.2.3",
			Collectors: []prometheus.Collector{NewCollector(FromDevice(d, time.Now), o)},
			Alive:      func() error { return Alive(d) },
			Ready:      func() error { return Ready(d) },
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error("the server ended with", err)
		}
		if conn, err := net.Dial("tcp", s.Addr().String()); err == nil {
			conn.Close()
			t.Error("the address is still in use")
		}
	})
	return s.Addr().String()
}

func get(t testing.TB, client *http.Client, url string) (status int, body string) {
	t.Helper()
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(all)
}

func TestServerAnswersScrapesAndHealthChecks(t *testing.T) {
	d := newFake()
	addr := testServer(t, d, Options{}, "")
	for path, want := range map[string]string{
		"/metrics": `ropewalk_build_info{goversion="go`,
		"/healthz": "ok\n",
		"/readyz":  "ok\n",
	} {
		if status, body := get(t, http.DefaultClient, "http://"+addr+path); status != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: got %d, %.300s, want 200, %q in it", path, status, body, want)
		}
	}
	_, body := get(t, http.DefaultClient, "http://"+addr+"/metrics")
	for _, want := range []string{"\ngo_goroutines ", "\nprocess_open_fds ", `version="v1.2.3"`, "\nropewalk_peers{"} {
		if !strings.Contains(body, want) {
			t.Errorf("a scrape has no %q", want)
		}
	}
	d.mu.Lock()
	d.stats.Up = false
	d.mu.Unlock()
	if status, body := get(t, http.DefaultClient, "http://"+addr+"/readyz"); status != 503 || body != "not ready: "+errDown.Error()+"\n" {
		t.Errorf("got %d, %s, want 503, %s", status, body, "not ready: "+errDown.Error()+"\n")
	}
	if status, _ := get(t, http.DefaultClient, "http://"+addr+"/healthz"); status != 200 {
		t.Errorf("/healthz of an interface that is down: got %d, want 200", status)
	}
	d.mu.Lock()
	d.stats.Stalls = config.StallReport{Transmit: 3, Lanes: []string{"tx1", "rx0"}}
	d.mu.Unlock()
	if status, body := get(t, http.DefaultClient, "http://"+addr+"/healthz"); status != 503 || body != "stuck: lanes make no progress: tx1, rx0\n" {
		t.Errorf("/healthz while lanes are stuck: got %d, %s", status, body)
	}
	d.mu.Lock()
	d.stats.Stalls.Lanes = nil
	d.mu.Unlock()
	if status, body := get(t, http.DefaultClient, "http://"+addr+"/healthz"); status != 200 {
		t.Errorf("/healthz once the lanes have resumed: got %d, %s", status, body)
	}
	for _, path := range []string{"/", "/debug/pprof/", "/metrics/..%2f", "/more"} {
		if status, _ := get(t, http.DefaultClient, "http://"+addr+path); status != 404 {
			t.Errorf("%s: got %d, want 404", path, status)
		}
	}
}

func TestServerRejectsOtherRequests(t *testing.T) {
	addr := testServer(t, newFake(), Options{}, "")
	for name, tt := range map[string]struct{ request, want string }{
		"another method":        {"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", "405"},
		"a large header":        {"GET /metrics HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 2*maxHeader) + "\r\n\r\n", "431"},
		"no HTTP":               {"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", "400"},
		"no host":               {"GET /metrics HTTP/1.1\r\n\r\n", "400"},
		"two lengths":           {"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "400"},
		"a path above the root": {"GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n", "307"},
	} {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, tt.request) // the answer may come before it is all written
		line, err := bufio.NewReader(conn).ReadString('\n')
		if fields := strings.Fields(line); len(fields) < 2 || fields[1] != tt.want {
			t.Errorf("%s: got %q, error %v", name, line, err)
		}
		conn.Close()
	}
}

func TestRequestBodyIsNotRead(t *testing.T) {
	addr := testServer(t, newFake(), Options{}, "")
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", 1<<40)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if !resp.Close {
		t.Error("the connection is kept although the body was not read")
	}
}

// connListener is a listener with one connection.
type connListener struct {
	conns  chan net.Conn
	closed func()
}

func newConnListener(c net.Conn) *connListener {
	conns := make(chan net.Conn, 1)
	conns <- c
	return &connListener{conns, sync.OnceFunc(func() { close(conns) })}
}

func (l *connListener) Accept() (net.Conn, error) {
	if c, ok := <-l.conns; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (l *connListener) Close() error   { l.closed(); return nil }
func (l *connListener) Addr() net.Addr { return &net.TCPAddr{} }

// TestStalledClientsAreDisconnected has clients that send or read no more. A case would never end if the server waited.
func TestStalledClientsAreDisconnected(t *testing.T) {
	for name, request := range map[string]string{
		"in the header":      "GET /healthz HTTP/1.1\r\nHost:",
		"while it is served": "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, conn := net.Pipe()
				s := &Server{cfg: ServerConfig{Log: slog.New(slog.DiscardHandler)}, listener: newConnListener(conn)}
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error)
				go func() { ended <- s.Serve(ctx, Content{}) }()
				_, err := io.WriteString(client, request)
				expect.NoError(t, err)
				unread := strings.Contains(request, "/metrics")
				if unread {
					time.Sleep(time.Hour) // the clock is fake
				}
				n, err := io.Copy(io.Discard, client)
				if err != nil || unread && n > 0 {
					t.Errorf("%d bytes, %v", n, err)
				}
				cancel()
				expect.NoError(t, <-ended)
			})
		})
	}
}

// TestStalledClientsMakeRoomForOthers: a liveness probe must not fail because of clients that send half a request and stay.
func TestStalledClientsMakeRoomForOthers(t *testing.T) {
	addr := testServer(t, newFake(), Options{}, "")
	dial := func(request string) net.Conn {
		conn, err := net.Dial("tcp", addr)
		expect.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		fmt.Fprint(conn, request)
		return conn
	}
	first := dial("GET /metrics HTTP/1.1\r\n") // and nothing more
	for range maxClients - 1 {
		dial("GET /metrics HTTP/1.1\r\n")
	}
	late := dial("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
	if resp, err := http.ReadResponse(bufio.NewReader(late), nil); err != nil || resp.StatusCode != 200 {
		t.Error(resp, err)
	}
	if n, err := io.Copy(io.Discard, first); n != 0 || err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the oldest client: got %d bytes, error %v, want a closed connection", n, err)
	}
}

// TestLongRequestOutlivesIdleClients has many clients that send nothing while a request is being answered.
func TestLongRequestOutlivesIdleClients(t *testing.T) {
	begun, end := make(chan bool), make(chan bool)
	s, err := Listen(ServerConfig{Addr: "127.0.0.1:0", Log: slog.New(slog.DiscardHandler)})
	expect.NoError(t, err)
	served := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		served <- s.Serve(ctx, Content{Alive: func() error {
			close(begun)
			<-end
			return nil
		}})
	}()
	answer := make(chan error, 1)
	go func() {
		resp, err := http.Get("http://" + s.Addr().String() + "/healthz")
		if err == nil {
			err = resp.Body.Close()
		}
		answer <- err
	}()
	<-begun
	var idle []net.Conn
	for range 2 * maxClients {
		conn, err := net.Dial("tcp", s.Addr().String())
		expect.NoError(t, err)
		fmt.Fprint(conn, "GET /metrics HTTP/1.1\r\n")
		idle = append(idle, conn)
	}
	_, _ = io.Copy(io.Discard, idle[0]) // until it is replaced, after all older ones that may be
	close(end)
	if err := <-answer; err != nil {
		t.Errorf("the long request: %v", err)
	}
	for _, conn := range idle {
		conn.Close()
	}
	cancel()
	expect.NoError(t, <-served)
}

// TestAnsweredClientsLeaveRoomForOthers has clients that were answered and stay.
func TestAnsweredClientsLeaveRoomForOthers(t *testing.T) {
	addr := testServer(t, newFake(), Options{}, "")
	for range maxClients + 1 {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprint(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
		if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if resp, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || resp.StatusCode != 200 {
			t.Fatal(resp, err)
		}
	}
}

func TestAddressInUseIsReported(t *testing.T) {
	first, err := Listen(ServerConfig{Addr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	_, err = Listen(ServerConfig{Addr: first.Addr().String()})
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "another program listens on this address") ||
		!strings.Contains(err.Error(), first.Addr().String()) {
		t.Error(err)
	}
	for _, addr := range []string{"here", "127.0.0.1", "127.0.0.1:99999", "256.0.0.1:80x"} {
		if s, err := Listen(ServerConfig{Addr: addr}); err == nil {
			s.Close()
			t.Errorf("%s: accepted", addr)
		} else if !strings.Contains(err.Error(), "serving metrics on "+addr) {
			t.Error(err)
		}
	}
}

// writeTLS writes a web config with TLS and a user, and returns its path and a client for it.
func writeTLS(t *testing.T, user, password string) (path string, client *http.Client) {
	t.Helper()
	dir := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	config := fmt.Sprintf("tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\nbasic_auth_users:\n  %s: %s\n", user, hash)
	for name, text := range map[string][]byte{
		"cert.pem": certificate, "key.pem": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
		"web.yml": []byte(config),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(certificate)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	t.Cleanup(transport.CloseIdleConnections)
	return filepath.Join(dir, "web.yml"), &http.Client{Transport: transport}
}

func TestWebConfigRequiresTLSAndPassword(t *testing.T) {
	path, client := writeTLS(t, "scraper", "a secret")
	addr := testServer(t, newFake(), Options{}, path)
	for _, page := range []string{"/metrics", "/healthz"} {
		if status, _ := get(t, client, "https://"+addr+page); status != 401 {
			t.Errorf("%s without a password: got %d, want 401", page, status)
		}
		if status, _ := get(t, client, "https://scraper:another@"+addr+page); status != 401 {
			t.Errorf("%s with a wrong password: got %d, want 401", page, status)
		}
		if status, _ := get(t, client, "https://scraper:a%20secret@"+addr+page); status != 200 {
			t.Errorf("%s with the password: got %d, want 200", page, status)
		}
	}
	if status, body := get(t, http.DefaultClient, "http://"+addr+"/metrics"); status != 400 || strings.Contains(body, "ropewalk") {
		t.Errorf("without TLS: got %d, want 400", status)
	}
}

func TestListenRejectsInvalidWebConfig(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"unknown": "tls: yes\n", "syntax": "\t", "hash": "basic_auth_users: {a: plain}\n",
		"secret":      testPrivateKey.Base64() + "\n",
		"certificate": "tls_server_config: {cert_file: none.pem, key_file: none.pem}\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if s, err := Listen(ServerConfig{Addr: "127.0.0.1:0", WebConfig: path}); err == nil {
			s.Close()
			t.Errorf("%s: accepted", name)
		} else if !strings.Contains(err.Error(), "reading the metrics config "+path) || strings.Contains(err.Error(), testPrivateKey.Base64()[:4]) {
			t.Error(err)
		}
	}
	if _, err := Listen(ServerConfig{Addr: "127.0.0.1:0", WebConfig: filepath.Join(dir, "none")}); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestConcurrentScrapesWhilePeersChange(t *testing.T) {
	d := newFake()
	addr := testServer(t, d, Options{WireGuardNames: true}, "")
	stop := make(chan struct{})
	var churn sync.WaitGroup
	churn.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			d.mu.Lock()
			d.status.Peers = nil
			for i := range n % (2 * MaxPeers) {
				d.status.Peers = append(d.status.Peers, fakePeer(n+i, time.Minute))
			}
			d.mu.Unlock()
		}
	})
	var scrapes sync.WaitGroup
	for range maxScrapes {
		scrapes.Go(func() {
			for range 20 {
				resp, err := http.Get("http://" + addr + "/metrics")
				if err != nil {
					t.Error(err)
					return
				}
				body, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				// Too many at once is an answer too.
				if err != nil || resp.StatusCode != 200 && resp.StatusCode != 503 {
					t.Errorf("%d, %v: got %.200s", resp.StatusCode, err, body)
				}
			}
		})
	}
	scrapes.Wait()
	close(stop)
	churn.Wait()
}

func TestServeReturnsListenerAndRegistryErrors(t *testing.T) {
	s, err := Listen(ServerConfig{Addr: "127.0.0.1:0", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if err := s.Serve(t.Context(), Content{}); err == nil || !strings.Contains(err.Error(), "serving metrics") {
		t.Error(err)
	}
	twice := prometheus.NewGauge(prometheus.GaugeOpts{Name: "a", Help: "b"})
	if s, err = Listen(ServerConfig{Addr: "127.0.0.1:0", Log: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	if err := s.Serve(t.Context(), Content{Collectors: []prometheus.Collector{twice, twice}}); err == nil {
		t.Error("a metric was registered twice")
	}
}

// TestFailedCollectorFailsScrape: only Content.Partial permits an answer without the metrics that failed.
func TestFailedCollectorFailsScrape(t *testing.T) {
	s := &Server{cfg: ServerConfig{Log: slog.New(slog.DiscardHandler)}}
	unreadable := NewSpreadCollector(func(context.Context) ([]spreader.DeviceStatus, error) { return nil, errors.New("not permitted") })
	for partial, want := range map[bool]int{false: http.StatusInternalServerError, true: http.StatusOK} {
		h, err := s.handler(Content{Collectors: []prometheus.Collector{unreadable}, Partial: partial})
		expect.NoError(t, err)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody))
		if w.Code != want {
			t.Errorf("partial %v: got status %d, want %d", partial, w.Code, want)
		}
	}
}
