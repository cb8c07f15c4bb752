// SPDX-License-Identifier: Apache-2.0

// Package remote reaches the two hosts of a tunnel by ssh. Dial copies programs to a host and starts
// an agent there, which Serve runs. The agent answers JSON-RPC on its standard input and output, and
// undoes everything when the connection ends. Tunnel is the path between two hosts. Begin with Dial.
package remote

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"net/rpc/jsonrpc"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/testbed"
)

const (
	// keepalive is the interval of Alive requests. Without a request for maxSilence the agent ends: the other side may have vanished.
	keepalive  = 5 * time.Second
	maxSilence = 30 * time.Second
	// prefix begins the names of the agents' network namespaces.
	prefix = "hosts"
	// dirPrefix begins the names of the directories that Dial makes.
	dirPrefix = "ropewalk-bench."
)

// AgentConfig configures Serve.
type AgentConfig struct {
	// Dir is the directory of the programs, which Serve removes.
	Dir string
	// Connection is the variable SSH_CONNECTION.
	Connection string
	// Root is the root of /proc and /sys, for tests; empty for the host's.
	Root string
	// Silence is the time without a request after which the agent ends; 0 means half a minute.
	Silence time.Duration
}

// AgentDir returns the directory of this program, if Dial has made it.
func AgentDir() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding the directory of the programs: %w", err)
	}
	dir := filepath.Dir(path)
	if !strings.HasPrefix(filepath.Base(dir), dirPrefix) {
		return "", fmt.Errorf("%s is no directory that bench hosts has made: the agent would remove it", dir)
	}
	return dir, nil
}

// agent has the state of Serve: everything that it has started and changed.
type agent struct {
	cfg      AgentConfig
	ctx      context.Context
	last     atomic.Int64 // when the last request came, Unix time in ns
	settings settings

	mu       sync.Mutex // held while something is started or stopped
	end      *testbed.End
	attached func() error // detaches spread; nil if it is not attached
	servers  []io.Closer
}

// Serve unpacks programs, which come first as a tar, and then answers requests until in ends, ctx is done or nothing asks any more. It
// returns when everything is as it was before, and Dir is gone.
func Serve(ctx context.Context, in io.Reader, out io.Writer, cfg AgentConfig) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	a := &agent{cfg: cfg, ctx: ctx, settings: settings{root: cfg.Root}}
	defer func() {
		cancel() // ends the requests that undo would wait for
		err = errors.Join(err, a.undo())
	}()
	buffered := bufio.NewReader(in)
	if err := unpack(buffered, cfg.Dir); err != nil {
		return fmt.Errorf("unpacking the programs: %w", err)
	}
	s := rpc.NewServer()
	if err := s.RegisterName("Host", &Host{a}); err != nil {
		return err
	}
	a.asked()
	go s.ServeCodec(jsonrpc.NewServerCodec(&conn{untilEnd{buffered, cancel}, out, io.NopCloser(nil)}))
	return a.watch()
}

// conn is a connection of two pipes.
type conn struct {
	io.Reader
	io.Writer
	io.Closer
}

// untilEnd calls ended at the end of a stream, or when it fails.
type untilEnd struct {
	io.Reader
	ended func()
}

func (r untilEnd) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	if err != nil {
		r.ended()
	}
	return n, err
}

func (a *agent) asked() { a.last.Store(time.Now().UnixNano()) }

// watch returns at the end of the connection.
func (a *agent) watch() error {
	limit := a.cfg.Silence
	if limit == 0 {
		limit = maxSilence
	}
	for {
		silent := time.Since(time.Unix(0, a.last.Load()))
		if silent > limit {
			return fmt.Errorf("no request for %v: the other side has vanished", limit)
		}
		select {
		case <-time.After(limit - silent + time.Millisecond):
		case <-a.ctx.Done():
			return nil
		}
	}
}

// undo restores all settings, ends everything, and removes the programs. Settings come first: the rest may take long, or be killed.
func (a *agent) undo() error {
	restored := a.settings.restore()
	a.mu.Lock()
	defer a.mu.Unlock()
	return errors.Join(restored, a.stop(), os.RemoveAll(a.cfg.Dir))
}

// stop ends what open and listen have started.
func (a *agent) stop() error {
	var errs []error
	for _, s := range a.servers {
		errs = append(errs, s.Close())
	}
	a.servers = nil
	if a.attached != nil {
		errs = append(errs, a.attached())
		a.attached = nil
	}
	if a.end != nil {
		errs = append(errs, a.end.Close())
		a.end = nil
	}
	return errors.Join(errs...)
}

// unpack extracts programs into dir, and reads nothing beyond them.
func unpack(in io.Reader, dir string) error {
	files := tar.NewReader(in)
	for {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := write(filepath.Join(dir, filepath.Base(h.Name)), files); err != nil {
			return err
		}
	}
}

func write(path string, from io.Reader) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o700)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Close())
}
