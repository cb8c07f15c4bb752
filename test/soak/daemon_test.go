// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/test/expect"
)

// metricsAddress is where a daemon serves its metrics, in the namespace of its host.
const metricsAddress = "127.0.0.1:9586"

// daemon is `ropewalk run` on a host, possibly after several upgrades in place.
type daemon struct {
	host         *netlab.Host
	ifname       string
	cable        string // its network device
	outer, inner netip.Prefix
	key          noise.PrivateKey
	cmd          *netlab.Command
	exited       chan error // of cmd
	log          lockedBuffer
}

// lockedBuffer is a buffer that a daemon and its successor write to.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

// String returns what was written so far.
func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// newDaemon starts a daemon with its own key. Its interface has no peers and is down.
func newDaemon(t *testing.T, host *netlab.Host, n byte) *daemon {
	t.Helper()
	d := &daemon{
		host: host, ifname: fmt.Sprintf("s%dx%d", os.Getpid(), n),
		outer: outerAddress(n), inner: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, n}), 24),
	}
	var err error
	d.key, err = noise.NewPrivateKey(rand.Reader)
	expect.NoError(t, err)
	expect.NoError(t, d.launch(ropewalk.Need(t)))
	t.Cleanup(func() {
		_ = d.cmd.Process.Signal(os.Interrupt)
		if err := <-d.exited; err != nil || t.Failed() {
			t.Errorf("the daemon of %s exited with %v:\n%s", d.ifname, err, d.log.String())
		}
	})
	expect.EventuallyNoError(t, "the daemon answers", func() error { return d.configure(config.Device{PrivateKey: &d.key}) })
	return d
}

func outerAddress(n byte) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, n}), 24)
}

// launch starts the program with further flags. It becomes cmd.
func (d *daemon) launch(path string, flags ...string) error {
	argv := append([]string{path, "run", "--lanes", "2", "--workers", "1", "--metrics", metricsAddress}, flags...)
	cmd := d.host.Command(context.Background(), append(argv, d.ifname)...)
	cmd.Stdout, cmd.Stderr = &d.log, &d.log
	if err := cmd.Start(); err != nil {
		return err
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	d.cmd, d.exited = cmd, exited
	return nil
}

// upgrade replaces the daemon in place, and returns when the old one has exited.
func (d *daemon) upgrade(path string) error {
	before := d.exited
	if err := d.launch(path, "--takeover"); err != nil {
		return err
	}
	select {
	case err := <-before:
		return err
	case err := <-d.exited:
		d.exited <- err
		return fmt.Errorf("the new daemon exited: %w", err)
	case <-time.After(patience):
		return errors.New("the old daemon still runs")
	}
}

func (d *daemon) ask(do func(*uapi.Client) error) error {
	c, err := uapi.Dial(d.ifname)
	if err != nil {
		return err
	}
	return errors.Join(do(c), c.Close())
}

func (d *daemon) configure(c config.Device) error {
	return d.ask(func(client *uapi.Client) error { return client.Configure(c) })
}

// lastHandshake returns the time of the last handshake with the only peer that has had one.
func (d *daemon) lastHandshake() (last time.Time, err error) {
	err = d.ask(func(client *uapi.Client) error {
		status, err := client.Status()
		for _, p := range status.Peers {
			if p.LastHandshake.After(last) {
				last = p.LastHandshake
			}
		}
		return err
	})
	return last, err
}

// peer returns the configuration of the daemon as a peer of others.
func (d *daemon) peer() config.Peer {
	return config.Peer{
		PublicKey:  d.key.Public(),
		Endpoint:   &config.Endpoint{AddrPort: netip.AddrPortFrom(d.outer.Addr(), listenPort)},
		AllowedIPs: []config.AllowedIP{{Prefix: netip.PrefixFrom(d.inner.Addr(), 32)}},
	}
}

// descriptors counts the daemon's open file descriptors.
func (d *daemon) descriptors() (int, error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.cmd.Process.Pid))
	return len(entries), err
}

// metrics returns the daemon's metrics by name.
func (d *daemon) metrics() (map[string]*dto.MetricFamily, error) {
	client := &http.Client{Timeout: patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(_ context.Context, network, addr string) (conn net.Conn, err error) {
			err = d.host.Do(func() error {
				conn, err = net.DialTimeout(network, addr, patience)
				return err
			})
			return conn, err
		},
	}}
	r, err := client.Get("http://" + metricsAddress + "/metrics")
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(r.Body)
}

// path returns the underlay that carries the daemon's data messages.
func (d *daemon) path() (string, error) {
	m, err := d.metrics()
	for _, info := range m["ropewalk_underlay_info"].GetMetric() {
		for _, l := range info.GetLabel() {
			if l.GetName() == "path" {
				return l.GetValue(), err
			}
		}
	}
	return "", errors.Join(err, errors.New("no ropewalk_underlay_info"))
}

// sum adds the values of a metric over all of its labels.
func sum(f *dto.MetricFamily) (v float64) {
	for _, m := range f.GetMetric() {
		v += m.GetGauge().GetValue() + m.GetCounter().GetValue()
	}
	return v
}
