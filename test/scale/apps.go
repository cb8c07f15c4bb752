// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
)

const (
	appPort = 5301
	// appBuffer is the size of the applications' reads and writes.
	appBuffer = 128 << 10
)

// sink accepts connections and reads each to its end. It writes two lines: its address, and the number of bytes received.
func sink(listen string, streams int, out io.Writer) error {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Fprintln(out, l.Addr())
	sums, errs := make([]int64, streams), make([]error, streams)
	var wg sync.WaitGroup
	for i := range streams {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		wg.Go(func() {
			defer conn.Close()
			sums[i], errs[i] = drain(conn)
		})
	}
	wg.Wait()
	total := int64(0)
	for _, n := range sums {
		total += n
	}
	fmt.Fprintln(out, total)
	return errors.Join(errs...)
}

func drain(conn net.Conn) (sum int64, err error) {
	buf := make([]byte, appBuffer)
	for {
		n, err := conn.Read(buf)
		sum += int64(n)
		if errors.Is(err, io.EOF) {
			return sum, nil
		}
		if err != nil {
			return sum, err
		}
	}
}

// source sends on that many connections until the time d has passed.
func source(to string, streams int, d time.Duration) error {
	conns := make([]net.Conn, streams)
	for i := range conns {
		conn, err := net.DialTimeout("tcp", to, connectTimeout)
		if err != nil {
			return err
		}
		conns[i] = conn
	}
	errs := make([]error, streams)
	end := time.Now().Add(d)
	var wg sync.WaitGroup
	for i, conn := range conns {
		wg.Go(func() { errs[i] = fill(conn, end) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func fill(conn net.Conn, end time.Time) error {
	defer conn.Close()
	buf := make([]byte, appBuffer)
	for time.Now().Before(end) {
		if _, err := conn.Write(buf); err != nil {
			return err
		}
	}
	return nil
}

// transfer is the result of a bulk transfer, with the CPU time of the applications.
type transfer struct {
	bytes         int64
	elapsed       time.Duration
	send, receive time.Duration // CPU time of the two applications
}

// runApps runs this program as source and as sink, each in its host. pin, if not nil, changes the command lines of the sender (0)
// and the receiver (1).
func runApps(ctx context.Context, from, at *netlab.Host, to netip.AddrPort, streams int, d time.Duration,
	pin func(side int, argv []string) []string,
) (transfer, error) {
	self, err := os.Executable()
	if err != nil {
		return transfer{}, fmt.Errorf("finding this program: %w", err)
	}
	if pin == nil {
		pin = func(_ int, argv []string) []string { return argv }
	}
	var out, log bytes.Buffer
	n := strconv.Itoa(streams)
	receiver := at.Command(ctx, pin(1, []string{self, "sink", to.String(), n})...)
	ready := newFirstLine()
	receiver.Stdout, receiver.Stderr = io.MultiWriter(&out, ready), &log
	if err := receiver.Start(); err != nil {
		return transfer{}, fmt.Errorf("starting the receiver: %w", err)
	}
	sender := from.Command(ctx, pin(0, []string{self, "source", to.String(), n, d.String()})...)
	sender.Stdout, sender.Stderr = &log, &log
	select {
	case <-ready.seen:
	case <-time.After(connectTimeout):
	}
	began := time.Now()
	err = sender.Run()
	elapsed := time.Since(began)
	if err != nil && receiver.Process != nil {
		_ = receiver.Process.Kill()
	}
	if err := errors.Join(err, receiver.Wait()); err != nil {
		return transfer{}, fmt.Errorf("running the TCP transfer: %w; %s", err, log.String())
	}
	_, count, _ := strings.Cut(out.String(), "\n")
	sum, err := strconv.ParseInt(strings.TrimSpace(count), 10, 64)
	if err != nil {
		return transfer{}, fmt.Errorf("reading the receiver's byte count: %w", err)
	}
	return transfer{
		bytes: sum, elapsed: elapsed,
		send:    sender.ProcessState.UserTime() + sender.ProcessState.SystemTime(),
		receive: receiver.ProcessState.UserTime() + receiver.ProcessState.SystemTime(),
	}, nil
}

// firstLine is a writer that waits for a line.
type firstLine struct {
	seen chan struct{} // closed after the first line
	line string        // without its newline; valid after seen is closed
	done bool
}

func newFirstLine() *firstLine { return &firstLine{seen: make(chan struct{})} }

// Write implements io.Writer.
func (f *firstLine) Write(b []byte) (int, error) {
	if f.done {
		return len(b), nil
	}
	head, _, whole := strings.Cut(string(b), "\n")
	f.line += head
	if whole {
		f.done = true
		close(f.seen)
	}
	return len(b), nil
}

// command runs a program and waits for it.
func command(argv ...string) error {
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("running %s: %w: %s", strings.Join(argv, " "), err, out)
	}
	return nil
}
