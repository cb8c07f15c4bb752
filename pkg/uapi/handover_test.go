// SPDX-License-Identifier: Apache-2.0

package uapi

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
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

func TestSocketIsGoneOnWithByAnotherListener(t *testing.T) {
	d := Dir(t.TempDir())
	first, err := d.Listen("wgt0")
	if err != nil {
		t.Fatal(err)
	}
	fd, err := first.Keep()
	if err != nil {
		t.Fatal(err)
	}
	first.Leave()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	waiting, err := net.Dial("unix", filepath.Join(string(d), "wgt0.sock"))
	if err != nil {
		t.Fatalf("nobody can connect meanwhile: %v", err)
	}
	defer waiting.Close()
	next, err := d.Resume("wgt0", fd)
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
		t.Errorf("the socket's file is left: %v", err)
	}
}

func TestOnlyTheSocketOfTheDeviceIsGoneOnWith(t *testing.T) {
	d := Dir(t.TempDir())
	l, err := d.Listen("other")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	fd, err := l.Keep()
	if err != nil {
		t.Fatal(err)
	}
	own, err := d.Listen("wgt0") // the file is there
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	if _, err := d.Resume("wgt0", fd); err == nil {
		t.Error("another device's socket is taken")
	}
}

func TestTakeOverHandsTheConnectionOn(t *testing.T) {
	d := Dir(t.TempDir())
	l, err := d.Listen("wgt0")
	if err != nil {
		t.Fatal(err)
	}
	refuse := errors.Join(errors.New("not now"), syscall.EBUSY)
	give := make(chan error, 2)
	give <- refuse
	give <- nil
	serveOn(t, &Server{TakeOver: func(c *net.UnixConn) error {
		err := <-give
		if err == nil {
			_, err = c.Write([]byte("yours"))
		}
		return err
	}}, l)
	for _, want := range []string{"errno=-16\n\n", "yours"} {
		c := dialed(t, d)
		conn, err := c.TakeOver()
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(io.LimitReader(conn, int64(len(want))))
		if err != nil || string(got) != want {
			t.Errorf("%q, %v", got, err)
		}
	}
	if err := Refusal([]byte("errno=-16\n\n")); !errors.Is(err, syscall.EBUSY) {
		t.Error(err)
	}
}

func TestUpgradeIsAnsweredBeforeTheDaemonEnds(t *testing.T) {
	d := Dir(t.TempDir())
	l, err := d.Listen("wgt0")
	if err != nil {
		t.Fatal(err)
	}
	heard, answered := make(chan struct{}), make(chan struct{})
	serveOn(t, &Server{Upgrade: func(_ context.Context, path string) (func(), error) {
		if path != "/new" {
			return nil, syscall.ENOENT
		}
		return func() { <-heard; close(answered) }, nil
	}}, l)
	c := dialed(t, d)
	for path, want := range map[string]error{"/old": syscall.ENOENT, "new": syscall.EINVAL, "": syscall.EINVAL} {
		if err := c.Upgrade(path); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", path, err, want)
		}
	}
	if err := c.Upgrade("/new"); err != nil {
		t.Error(err)
	}
	close(heard)
	select {
	case <-answered:
	case <-time.After(time.Minute):
		t.Error("nobody is told of the answer")
	}
}

func TestTheEndOfTheServerEndsAnUpgrade(t *testing.T) {
	d := Dir(t.TempDir())
	l, err := d.Listen("wgt0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s := &Server{Upgrade: func(of context.Context, _ string) (func(), error) {
		cancel()
		select {
		case <-of.Done():
		case <-time.After(time.Minute):
			t.Error("it hears nothing of that")
		}
		return nil, of.Err()
	}}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	if err := dialed(t, d).Upgrade("/new"); err == nil {
		t.Error("answered as if it had succeeded")
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func TestServersThatHandNothingOverSaySo(t *testing.T) {
	d := Dir(t.TempDir())
	l, err := d.Listen("wgt0")
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, &Server{}, l)
	if err := dialed(t, d).Upgrade("/new"); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Error(err)
	}
	conn, err := dialed(t, d).TakeOver()
	if err != nil {
		t.Fatal(err)
	}
	var first [9]byte
	if _, err := io.ReadFull(conn, first[:]); err != nil || !errors.Is(Refusal(first[:]), syscall.EOPNOTSUPP) {
		t.Errorf("%q, %v", first, err)
	}
}

// TestWhoConnectsWhileTheSocketIsHeldIsAnsweredByWhoGoesOn, be it another Listener or the same one.
func TestWhoConnectsWhileTheSocketIsHeldIsAnsweredByWhoGoesOn(t *testing.T) {
	d := Dir(t.TempDir())
	l, err := d.Listen("wgt0")
	if err != nil {
		t.Fatal(err)
	}
	fd, err := l.Keep()
	if err != nil {
		t.Fatal(err)
	}
	levels := [2]slog.LevelVar{}
	levels[1].Set(slog.LevelError)
	serveOn(t, &Server{Level: &levels[0]}, l)
	want := func(c *Client, level string) {
		t.Helper()
		if got, err := c.LogLevel(); err != nil || got != level {
			t.Errorf("%s, %v; want %s", got, err, level)
		}
	}
	want(dialed(t, d), "info")
	for range 3 {
		if err := l.Hold(); err != nil {
			t.Fatal(err)
		}
		waiting := dialed(t, d)
		if err := l.Release(); err != nil {
			t.Fatal(err)
		}
		want(waiting, "info")
	}
	if err := errors.Join(l.Hold(), l.Hold()); err != nil {
		t.Fatal(err)
	}
	waiting := dialed(t, d)
	l.Leave()
	next, err := d.Resume("wgt0", fd)
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, &Server{Level: &levels[1]}, next)
	want(waiting, "error")
}

// TestNobodyWhoseUserIsUnknownMayUpgrade: only a Unix socket tells it.
func TestNobodyWhoseUserIsUnknownMayUpgrade(t *testing.T) {
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

// TestTheFileOfASocketIsLeftOrRemovedNeverBoth: what Leave has said holds for a Close that comes after it.
func TestTheFileOfASocketIsLeftOrRemovedNeverBoth(t *testing.T) {
	d := Dir(t.TempDir())
	path := filepath.Join(string(d), "wgt0.sock")
	l, err := d.Listen("wgt0")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.Leave(), l.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("a socket that was left: %v", err)
	}
	if err := l.Own(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	_ = l.Close() // it is closed already, but removes what is its own again
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a socket that was left and is owned again: %v", err)
	}
	if err := l.Leave(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("left after it was removed: %v", err)
	}
}
