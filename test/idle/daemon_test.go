// SPDX-License-Identifier: Apache-2.0

package idle

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/test/expect"
)

// daemon is `ropewalk run` in its own network namespace, with its interface up.
type daemon struct {
	t      *testing.T
	host   *netlab.Host
	cmd    *netlab.Command
	ifname string
	public noise.PublicKey
	port   uint16
}

// interfaces numbers all interfaces of the process, because control sockets of all namespaces share one directory.
var interfaces atomic.Uint32

func startDaemon(t *testing.T, net *netlab.Lab, lanes int) *daemon {
	t.Helper()
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skipf("needs a TUN driver: %v", err)
	}
	n := interfaces.Add(1)
	d := &daemon{t: t, ifname: fmt.Sprintf("i%dx%d", os.Getpid(), n)}
	var err error
	d.host, err = net.Host(fmt.Sprintf("h%d", n))
	expect.NoError(t, err)
	var log bytes.Buffer
	d.cmd = d.host.Command(context.Background(), ropewalk.Need(t), "run", "--lanes", strconv.Itoa(lanes), "--workers", "4", d.ifname)
	d.cmd.Stdout, d.cmd.Stderr = &log, &log
	expect.NoError(t, d.cmd.Start())
	t.Cleanup(func() {
		_ = d.cmd.Process.Signal(os.Interrupt)
		if err := d.cmd.Wait(); err != nil || t.Failed() {
			t.Errorf("the daemon exited with %v:\n%s", err, log.String())
		}
	})
	expect.Eventually(t, "the daemon answers", func() bool { return d.ask(func(*uapi.Client) error { return nil }) == nil })
	key, err := noise.NewPrivateKey(rand.Reader)
	expect.NoError(t, err)
	d.public = key.Public()
	d.apply(config.Device{PrivateKey: &key})
	expect.NoError(t, d.host.SetUp(d.ifname, 1420))
	expect.Eventually(t, "the port is open", func() bool {
		d.port = d.status().ListenPort
		return d.port != 0
	})
	return d
}

func (d *daemon) ask(do func(*uapi.Client) error) error {
	c, err := uapi.Dial(d.ifname)
	if err != nil {
		return err
	}
	return errors.Join(do(c), c.Close())
}

func (d *daemon) apply(c config.Device) {
	d.t.Helper()
	expect.NoError(d.t, d.ask(func(client *uapi.Client) error { return client.Configure(c) }))
}

func (d *daemon) status() (s config.Status) {
	d.t.Helper()
	expect.NoError(d.t, d.ask(func(c *uapi.Client) (err error) {
		s, err = c.Status()
		return err
	}))
	return s
}

// usage is the resource usage of a process. It excludes context switches of threads that have exited.
type usage struct {
	switches int // voluntary context switches: one for each wakeup
	ticks    int // CPU time in hundredths of a second
	threads  int
	rss      int // resident memory in KiB
	anon     int // the part of rss that is not mapped from files, in KiB
}

func (d *daemon) usage() (u usage) {
	d.t.Helper()
	dir := fmt.Sprintf("/proc/%d", d.cmd.Process.Pid)
	tasks, err := filepath.Glob(dir + "/task/*/status")
	expect.NoError(d.t, err)
	for _, task := range tasks {
		u.switches += field(d.t, task, "voluntary_ctxt_switches:")
	}
	u.threads = len(tasks)
	u.rss, u.anon = field(d.t, dir+"/status", "VmRSS:"), field(d.t, dir+"/status", "RssAnon:")
	stat, err := os.ReadFile(dir + "/stat")
	expect.NoError(d.t, err)
	// proc_pid_stat(5): the 12th and 13th fields after the name are utime and stime.
	rest := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	for _, f := range rest[11:13] {
		n, err := strconv.Atoi(f)
		expect.NoError(d.t, err)
		u.ticks += n
	}
	return u
}

// field returns a number from a status file. It returns 0 if the thread has exited.
func field(t *testing.T, path, name string) int {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			n, err := strconv.Atoi(strings.Fields(rest)[0])
			expect.NoError(t, err)
			return n
		}
	}
	t.Fatalf("%s has no %s", path, name)
	return 0
}
