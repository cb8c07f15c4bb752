// SPDX-License-Identifier: Apache-2.0

package uapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// serveOn serves a device's socket until the test ends.
func serveOn(t *testing.T, s *Server, l *Listener) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

func dialed(t *testing.T, d Dir) *Client {
	t.Helper()
	c, err := d.Dial("wgt0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestSocketPassesToAnotherListener(t *testing.T) {
	d := Dir(t.TempDir())
	first, err := d.Listen("wgt0")
	if err != nil {
		t.Fatal(err)
	}
	fd, err := first.DupFD()
	if err != nil {
		t.Fatal(err)
	}
	first.Disown()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	waiting, err := net.Dial("unix", filepath.Join(string(d), "wgt0.sock"))
	if err != nil {
		t.Fatalf("no client can connect between the two listeners: %v", err)
	}
	defer waiting.Close()
	next, err := d.ListenFD("wgt0", fd)
	if err != nil {
		t.Fatal(err)
	}
	if err := next.Own(); err != nil {
		t.Error(err)
	}
	conn, err := next.Accept()
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if err := next.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Join(string(d), "wgt0.sock")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket's file still exists: got error %v, want %v", err, os.ErrNotExist)
	}
}

func TestListenFDRefusesAnotherDevicesSocket(t *testing.T) {
	d := Dir(t.TempDir())
	l, err := d.Listen("other")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	fd, err := l.DupFD()
	if err != nil {
		t.Fatal(err)
	}
	own, err := d.Listen("wgt0") // the file is there
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	if _, err := d.ListenFD("wgt0", fd); err == nil {
		t.Error("ListenFD accepts another device's socket")
	}
}

func TestHandoverPassesTheConnectionToTheDaemon(t *testing.T) {
	d := Dir(t.TempDir())
	l, err := d.Listen("wgt0")
	if err != nil {
		t.Fatal(err)
	}
	refuse := errors.Join(errors.New("not now"), syscall.EBUSY)
	results := make(chan error, 2)
	results <- refuse
	results <- nil
	serveOn(t, &Server{Handover: func(c *net.UnixConn) error {
		err := <-results
		if err == nil {
			_, err = c.Write([]byte("offer"))
		}
		return err
	}}, l)
	for _, want := range []string{"errno=-16\n\n", "offer"} {
		c := dialed(t, d)
		conn, err := c.RequestHandover()
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(io.LimitReader(conn, int64(len(want))))
		if err != nil || string(got) != want {
			t.Errorf("got %q, error %v, want no error", got, err)
		}
	}
	if err := ParseRefusal([]byte("errno=-16\n\n")); !errors.Is(err, syscall.EBUSY) {
		t.Error(err)
	}
}

func TestUpgradeIsAnsweredBeforeTheDaemonEnds(t *testing.T) {
	d := Dir(t.TempDir())
	l, err := d.Listen("wgt0")
	if err != nil {
		t.Fatal(err)
	}
	answered, replied := make(chan struct{}), make(chan struct{})
	serveOn(t, &Server{Upgrade: func(_ context.Context, path string) (func(), error) {
		if path != "/new" {
			return nil, syscall.ENOENT
		}
		return func() { <-answered; close(replied) }, nil
	}}, l)
	c := dialed(t, d)
	for path, want := range map[string]error{"/old": syscall.ENOENT, "new": syscall.EINVAL, "": syscall.EINVAL} {
		if err := c.Upgrade(path); !errors.Is(err, want) {
			t.Errorf("%q: got %v, want %v", path, err, want)
		}
	}
	if err := c.Upgrade("/new"); err != nil {
		t.Error(err)
	}
	close(answered)
	select {
	case <-replied:
	case <-time.After(time.Minute):
		t.Error("the daemon is not notified after the answer")
	}
}

func TestFailedUpgradeIsAnsweredWithItsReason(t *testing.T) {
	d := Dir(t.TempDir())
	l, err := d.Listen("wgt0")
	if err != nil {
		t.Fatal(err)
	}
	failure := errors.New("starting /new: it says\n\nno\n" + strings.Repeat("x", maxLine))
	serveOn(t, &Server{Upgrade: func(_ context.Context, path string) (func(), error) {
		if path == "/absent" {
			return nil, fmt.Errorf("starting %s: %w", path, syscall.ENOENT)
		}
		return nil, failure
	}}, l)
	c := dialed(t, d)
	if err := c.Upgrade("/new"); err == nil || !strings.Contains(err.Error(), "starting /new: it says\nno\nxxx") {
		t.Error(err)
	}
	err = c.Upgrade("/absent")
	if want := "upgrading the daemon of wgt0: starting /absent: no such file or directory"; !errors.Is(err, syscall.ENOENT) || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestServerShutdownCancelsUpgrade(t *testing.T) {
	d := Dir(t.TempDir())
	l, err := d.Listen("wgt0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s := &Server{Upgrade: func(ctx context.Context, _ string) (func(), error) {
		cancel()
		select {
		case <-ctx.Done():
		case <-time.After(time.Minute):
			t.Error("the context of the upgrade does not end")
		}
		return nil, ctx.Err()
	}}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	if err := dialed(t, d).Upgrade("/new"); err == nil {
		t.Error("the client sees success")
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func TestUnsupportedUpgradeAndHandoverAreRefused(t *testing.T) {
	d := Dir(t.TempDir())
	l, err := d.Listen("wgt0")
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, &Server{}, l)
	if err := dialed(t, d).Upgrade("/new"); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Error(err)
	}
	conn, err := dialed(t, d).RequestHandover()
	if err != nil {
		t.Fatal(err)
	}
	var first [9]byte
	if _, err := io.ReadFull(conn, first[:]); err != nil || !errors.Is(ParseRefusal(first[:]), syscall.EOPNOTSUPP) {
		t.Errorf("got %q, error %v, want no error", first, err)
	}
}

func TestFailedRequestIsLoggedWithItsOperation(t *testing.T) {
	d := Dir(t.TempDir())
	l, err := d.Listen("wgt0")
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	s := &Server{Log: slog.New(slog.NewTextHandler(&log, nil))}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	upgrading := dialed(t, d)
	relative, absolute := upgrading.Upgrade("new"), upgrading.Upgrade("/new")
	conn, err := dialed(t, d).RequestHandover()
	if err == nil {
		_, err = io.ReadFull(conn, make([]byte, 1)) // the answer follows the log line
	}
	cancel()
	if err := errors.Join(err, <-served); err != nil || relative == nil || absolute == nil {
		t.Fatalf("got error %v, upgrades %v, %v, want errors of the upgrades only", err, relative, absolute)
	}
	for _, want := range []string{
		"operation=upgrade error=\"upgrade=1: the next line must be path= and an absolute path",
		"operation=upgrade error=\"upgrade is not supported by this process: only `ropewalk run` without --keep supports it. From --keep another `ropewalk run --keep` takes over",
		"operation=handover error=\"handover is not supported by this process",
	} {
		if want = "request on the control socket failed\" " + want; !strings.Contains(log.String(), want) {
			t.Errorf("got log %s, want %s in it", log.String(), want)
		}
	}
}

// TestPausedSocketQueuesClientsForSuccessor also covers a Listener that resumes itself.
func TestPausedSocketQueuesClientsForSuccessor(t *testing.T) {
	d := Dir(t.TempDir())
	l, err := d.Listen("wgt0")
	if err != nil {
		t.Fatal(err)
	}
	fd, err := l.DupFD()
	if err != nil {
		t.Fatal(err)
	}
	levels := [2]slog.LevelVar{}
	levels[1].Set(slog.LevelError)
	serveOn(t, &Server{Level: &levels[0]}, l)
	want := func(c *Client, level string) {
		t.Helper()
		if got, err := c.LogLevel(); err != nil || got != level {
			t.Errorf("got %s, %v; want %s", got, err, level)
		}
	}
	want(dialed(t, d), "info")
	for range 3 {
		if err := l.Pause(); err != nil {
			t.Fatal(err)
		}
		waiting := dialed(t, d)
		if err := l.Resume(); err != nil {
			t.Fatal(err)
		}
		want(waiting, "info")
	}
	if err := errors.Join(l.Pause(), l.Pause()); err != nil {
		t.Fatal(err)
	}
	waiting := dialed(t, d)
	l.Disown()
	next, err := d.ListenFD("wgt0", fd)
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, &Server{Level: &levels[1]}, next)
	want(waiting, "error")
}

// TestUpgradeIsRefusedForUnknownUser connects by TCP: only a Unix socket reports the client's user.
func TestUpgradeIsRefusedForUnknownUser(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	s := &Server{Upgrade: func(context.Context, string) (func(), error) {
		t.Error("a successor was started")
		return func() {}, nil
	}}
	go func() { served <- s.Serve(ctx, l) }()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c := newClient("wgt0", conn)
	defer c.Close()
	if err := c.Upgrade("/new"); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Error(err)
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// TestCloseKeepsDisownedFileAndRemovesOwnedFile also checks the order of Disown, Own and Close.
func TestCloseKeepsDisownedFileAndRemovesOwnedFile(t *testing.T) {
	d := Dir(t.TempDir())
	path := filepath.Join(string(d), "wgt0.sock")
	l, err := d.Listen("wgt0")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.Disown(), l.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the file of a disowned socket: %v", err)
	}
	if err := l.Own(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	_ = l.Close() // the socket is closed already, but the file is its own again
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file of a socket that is owned again: got error %v, want %v", err, os.ErrNotExist)
	}
	if err := l.Disown(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("disowned after the file was removed: got error %v, want %v", err, net.ErrClosed)
	}
}
