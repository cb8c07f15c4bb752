// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/lab/demo"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab/netlabtest"
	"github.com/ropewalk/ropewalk/pkg/observe/metrics"
	"github.com/ropewalk/ropewalk/test/expect"
)

func TestUpPassesMetricsFlagsToDaemon(t *testing.T) {
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		flags metricsFlags
		want  []string
	}{
		{metricsFlags{}, nil},
		{metricsFlags{addr: ":9820"}, nil},
		{
			metricsFlags{addr: ":9820", config: "web.yml", Options: metrics.Options{PerPeer: metrics.PerPeerOff, WireGuardNames: true}},
			[]string{
				"--metrics-per-peer", "off", "--metrics-config", filepath.Join(wd, "web.yml"), "--metrics-wireguard-names",
			},
		},
	} {
		got, err := tt.flags.args()
		if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
			t.Errorf("%v\n%s", err, diff)
		}
	}
}

func TestMetricsFlagsNeedAnAddress(t *testing.T) {
	for command, of := range map[string]string{"run": "wg0", "up": writeConf(t, "wg0", "[Interface]\n")} {
		for _, flag := range []string{"--metrics-config=x", "--metrics-per-peer=on", "--metrics-wireguard-names"} {
			_, _, err := execute(t, newRootCmd(), "", command, flag, of)
			if err == nil || exitCode(err) != exitUsage || !strings.Contains(err.Error(), "--metrics HOST:PORT") {
				t.Errorf("%s %s: got error %v, want an error", command, flag, err)
			}
		}
		_, _, err := execute(t, newRootCmd(), "", command, "--metrics=:0", "--metrics-per-peer=some", "wg0")
		if err == nil || exitCode(err) != exitUsage || !strings.Contains(err.Error(), "want auto, on or off") {
			t.Errorf("%s: got error %v, want an error", command, err)
		}
	}
}

func TestRunFailsEarlyIfMetricsAddressInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, _, err = execute(t, newRootCmd(), "", "run", "--log-level", "silent", "--metrics", l.Addr().String(), "rwnometrics")
	if !errors.Is(err, syscall.EADDRINUSE) || exitCode(err) != exitError {
		t.Error(err)
	}
	if _, err := net.InterfaceByName("rwnometrics"); err == nil {
		t.Error("the interface was created")
	}
}

// metricsDaemonEnv makes a child process of this test binary a daemon with these arguments: see TestMetricsDaemonProcess.
const metricsDaemonEnv = "ROPEWALK_TEST_METRICS_DAEMON"

// TestMetricsDaemonProcess is not a test: it is the daemon process of the other tests.
func TestMetricsDaemonProcess(t *testing.T) {
	args := os.Getenv(metricsDaemonEnv)
	if args == "" {
		t.Skip("run by the tests of metrics")
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	root := newRootCmd()
	root.SetArgs(slices.Concat([]string{"run"}, strings.Fields(args), os.Args[len(os.Args)-1:]))
	if err := root.ExecuteContext(ctx); err != nil {
		t.Fatal(err)
	}
}

const (
	scrapeAddr     = "127.0.0.1:9820"
	prometheusAddr = "127.0.0.1:9090"
)

// metricsLab is a pair of hosts with a tunnel. The daemon of the left one serves metrics.
type metricsLab struct {
	left, right *demo.Side
	client      *http.Client // in the left host's network namespace
}

func newMetricsLab(t *testing.T) *metricsLab {
	t.Helper()
	lab, _ := netlabtest.Hosts(t, "metrics")
	m := &metricsLab{}
	var err error
	m.left, err = demo.NewSide(lab, demo.NewHostAddresses("left", 1))
	expect.NoError(t, err)
	m.right, err = demo.NewSide(lab, demo.NewHostAddresses("right", 2))
	expect.NoError(t, err)
	_, err = lab.Cable(m.left.Host, m.right.Host, netlab.CableConfig{AddrsA: m.left.Cable[:], AddrsB: m.right.Cable[:]})
	expect.NoError(t, err)
	t.Setenv(metricsDaemonEnv, "--lanes 2 --metrics-wireguard-names --metrics "+scrapeAddr)
	for _, s := range []*demo.Side{m.left, m.right} {
		expect.NoError(t, s.Start(t.Context(), []string{"/proc/self/exe", "-test.run=^TestMetricsDaemonProcess$", "--"}, func(error) {}))
		t.Cleanup(s.Kill)
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
		err = m.left.Host.Do(func() error {
			conn, err = (&net.Dialer{}).DialContext(ctx, network, addr)
			return err
		})
		return conn, err
	}}
	t.Cleanup(transport.CloseIdleConnections)
	m.client = &http.Client{Transport: transport, Timeout: 20 * time.Second}
	return m
}

func (m *metricsLab) get(url string) (status int, body string, err error) {
	resp, err := m.client.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(all), err
}

// load sends TCP through the tunnel, and packets to an address that no peer has, until the test ends.
func (m *metricsLab) load(t *testing.T) {
	t.Helper()
	var l net.Listener
	var to net.Conn
	var noPeer net.Conn
	err := errors.Join(m.right.Host.Do(func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(m.right.Tunnel[0].Addr(), 0).String())
		return err
	}), m.left.Host.Do(func() (err error) {
		if to, err = net.DialTimeout("tcp", l.Addr().String(), 20*time.Second); err != nil {
			return err
		}
		noPeer, err = net.Dial("udp", netip.AddrPortFrom(m.right.Tunnel[0].Addr().Next().Next(), 9).String())
		return err
	}))
	if err != nil {
		t.Fatal(err)
	}
	from, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	var ended sync.WaitGroup
	ended.Go(func() { _, _ = io.Copy(io.Discard, from) })
	ended.Go(func() {
		block := make([]byte, 256<<10)
		tick := time.NewTicker(20 * time.Millisecond) // limits the load: other tests run too
		defer tick.Stop()
		for range tick.C {
			_, _ = noPeer.Write([]byte("to no peer"))
			if _, err := to.Write(block); err != nil {
				return
			}
		}
	})
	t.Cleanup(func() {
		for _, c := range []io.Closer{to, from, noPeer, l} {
			c.Close()
		}
		ended.Wait()
	})
}

// sample returns the value of a series in a scrape.
func sample(scrape, series string) (float64, error) {
	for line := range strings.Lines(scrape) {
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(rest), 64)
		}
	}
	return 0, fmt.Errorf("no %s in\n%s", series, scrape)
}

func TestPrometheusScrapesRunningTunnel(t *testing.T) {
	m := newMetricsLab(t)
	if status, body, err := m.get("http://" + scrapeAddr + "/readyz"); status != 503 || err != nil {
		t.Errorf("/readyz before the interface is up: got %d, %s, error %v, want 503, no error", status, body, err)
	}
	for _, err := range []error{m.right.SetUp(m.left), m.left.SetUp(m.right)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	expect.EventuallyNoError(t, "the daemon to be ready", func() error {
		status, body, err := m.get("http://" + scrapeAddr + "/readyz")
		if status != 200 {
			return fmt.Errorf("%d, %s, %w", status, body, err)
		}
		return nil
	})
	m.load(t)
	t.Run("scrape", m.checkScrape)
	t.Run("prometheus", m.checkPrometheus)
}

// checkScrape checks a scrape of the daemon.
func (m *metricsLab) checkScrape(t *testing.T) {
	series := func(format string, args ...any) string {
		return strings.ReplaceAll(fmt.Sprintf(format, args...), `"IF"`, strconv.Quote(m.left.Interface)) // a random key may contain IF
	}
	peer := m.right.Key.Public().Base64()
	allowed := fmt.Sprintf("%s/32,%s/128", m.right.Tunnel[0].Addr(), m.right.Tunnel[1].Addr())
	var text string
	expect.EventuallyNoError(t, "the metrics to show the load", func() (err error) {
		if _, text, err = m.get("http://" + scrapeAddr + "/metrics"); err != nil {
			return err
		}
		sent := 0.0
		for _, lane := range []string{"0", "1", "slow"} {
			n, err := sample(text, series(`ropewalk_lane_transmit_bytes_total{interface="IF",lane="%s"}`, lane))
			if err != nil {
				return err
			}
			sent += n
		}
		if sent < 1<<20 {
			return fmt.Errorf("%v bytes sent", sent)
		}
		return nil
	})
	for name, lowest := range map[string]float64{
		`ropewalk_interface_up{interface="IF"}`:                                                              1,
		`ropewalk_handshakes_started_total{interface="IF",role="initiator"}`:                                 1,
		`ropewalk_handshakes_total{interface="IF",result="completed",role="initiator"}`:                      1,
		`ropewalk_lanes{interface="IF"}`:                                                                     2,
		`ropewalk_peers{interface="IF",state="established"}`:                                                 1,
		`ropewalk_dropped_packets_total{interface="IF",reason="tx_no_peer",stage="transmit"}`:                1,
		`ropewalk_udp_batch_messages_count{direction="transmit",interface="IF"}`:                             10,
		`ropewalk_udp_batch_messages_sum{direction="transmit",interface="IF"}`:                               500,
		`ropewalk_udp_batch_messages_sum{direction="receive",interface="IF"}`:                                10,
		`ropewalk_peer_transmit_bytes_total{interface="IF",public_key="` + peer + `"}`:                       1 << 20,
		`ropewalk_peer_last_handshake_timestamp_seconds{interface="IF",public_key="` + peer + `"}`:           float64(time.Now().Add(-time.Hour).Unix()),
		`wireguard_sent_bytes_total{allowed_ips="` + allowed + `",interface="IF",public_key="` + peer + `"}`: 1 << 20,
	} {
		if v, err := sample(text, series("%s", name)); err != nil || v < lowest {
			t.Errorf("%s: got %v, want %v: %v", name, v, lowest, err)
		}
	}
	for _, secret := range []string{m.left.Key.Base64(), m.left.Key.Hex(), m.right.Key.Base64()} {
		if strings.Contains(text, secret) {
			t.Error("a private key is in the scrape")
		}
	}
	m.compareWithSocket(t, text, series)
	if promtool, err := exec.LookPath("promtool"); err == nil {
		check := exec.Command(promtool, "check", "metrics")
		check.Stdin = strings.NewReader(text)
		// promtool may complain about the names of prometheus_wireguard_exporter, but not about ropewalk's.
		if out, err := check.CombinedOutput(); err != nil || bytes.Contains(out, []byte("ropewalk_")) {
			t.Errorf("%v\n%s", err, out)
		}
	}
}

// compareWithSocket compares the counters of messages with those that the control socket reports later.
func (m *metricsLab) compareWithSocket(t *testing.T, text string, series func(string, ...any) string) {
	t.Helper()
	var stats struct {
		Lanes []struct {
			TxPackets uint64 `json:"tx_packets"`
		} `json:"lanes"`
	}
	c, err := uapi.Dial(m.left.Interface)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Stats(&stats); err != nil {
		t.Fatal(err)
	}
	for i, l := range stats.Lanes {
		n, err := sample(text, series(`ropewalk_lane_transmit_packets_total{interface="IF",lane="%d"}`, i))
		if err != nil || n > float64(l.TxPackets) {
			t.Errorf("lane %d: %v scraped, then %d: %v", i, n, l.TxPackets, err)
		}
	}
	sum, _ := sample(text, series(`ropewalk_udp_batch_messages_sum{direction="transmit",interface="IF"}`))
	all := 0.0
	for _, lane := range []string{"0", "1", "slow"} {
		n, _ := sample(text, series(`ropewalk_lane_transmit_packets_total{interface="IF",lane="%s"}`, lane))
		all += n
	}
	// A snapshot is consistent only for each counter.
	if sum < all/2 || sum > all*2 {
		t.Errorf("%v messages in runs, %v sent", sum, all)
	}
}
