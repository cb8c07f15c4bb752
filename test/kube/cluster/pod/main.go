// SPDX-License-Identifier: Apache-2.0

// Command pod is what the test's pods run. Without arguments it waits for SIGTERM, as a pause container does.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/signal"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// patience bounds what a command waits for.
const patience = time.Minute

// secret is in all that pods send, so that any unencrypted packet shows it.
var secret = []byte("nobody may read this. ")

func main() {
	var err error
	switch args := os.Args[1:]; {
	case len(args) == 0:
		wait()
	case len(args) == 2 && args[0] == "serve":
		err = serve(args[1])
	case len(args) == 2 && args[0] == "dial":
		err = dial(args[1])
	case len(args) == 2 && args[0] == "chat":
		err = chat(args[1])
	case len(args) == 2 && args[0] == "probe":
		err = probe(args[1])
	default:
		err = fmt.Errorf("usage: pod [serve|dial|chat|probe ADDRESS:PORT], not %q", args)
	}
	if err != nil {
		log.Fatal(err)
	}
}

func wait() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	<-ctx.Done()
}

// serve echoes datagrams and connections. A connection first gets a line with this host's name and the client's address.
func serve(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	u, err := net.ListenPacket("udp", addr)
	if err != nil {
		return err
	}
	go func() { log.Fatal(echo(u)) }()
	go func() { log.Fatal(accept(l)) }()
	fmt.Println("serving")
	wait()
	return nil
}

func echo(u net.PacketConn) error {
	b := make([]byte, 64<<10)
	for {
		n, from, err := u.ReadFrom(b)
		if err != nil {
			return err
		}
		_, _ = u.WriteTo(b[:n], from) // the prober counts what is lost
	}
}

func accept(l net.Listener) error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
			fmt.Fprintf(c, "%s %s\n", name, host)
			_, _ = io.Copy(c, c)
		}()
	}
}

// dial sends a megabyte, receives it back, and prints the server's line.
func dial(addr string) error {
	c, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		return err
	}
	defer c.Close()
	line, err := exchange(c.(*net.TCPConn), bytes.Repeat(secret, 50_000))
	fmt.Print(line)
	return err
}

// exchange sends the data, and returns the server's line once all of it has come back.
func exchange(c *net.TCPConn, data []byte) (line string, err error) {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	go func() {
		_, _ = c.Write(data)
		_ = c.CloseWrite()
	}()
	all, err := io.ReadAll(c)
	if err != nil {
		return "", err
	}
	first, back, ok := bytes.Cut(all, []byte("\n"))
	if !ok || !bytes.Equal(back, data) {
		return "", fmt.Errorf("%d bytes came back, of %d", len(back), len(data))
	}
	return string(first) + "\n", nil
}

// chat sends a datagram every 20 ms, whatever becomes of it.
func chat(addr string) error {
	c, err := net.Dial("udp", addr)
	if err != nil {
		return err
	}
	for range time.Tick(20 * time.Millisecond) {
		_, _ = c.Write(secret)
	}
	return nil
}

// Probe is the result of probe.
type Probe struct {
	Sent, Received int
	// Longest is the longest time without an answer, and Paused the longest between two datagrams: the prober had no CPU.
	Longest, Paused time.Duration
	// TCP is the error of a connection that was open all the time, or empty.
	TCP string
}

// interval is the time between two datagrams of probe.
const interval = 10 * time.Millisecond

// probe sends datagrams to a server and keeps a connection open until its standard input ends, then prints a Probe. It prints
// a line when the first answer arrives.
func probe(addr string) error {
	c, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		return err
	}
	defer c.Close()
	u, err := net.Dial("udp", addr)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	p := Probe{}
	var receiving sync.WaitGroup
	receiving.Go(func() { p.receive(u) })
	p.send(ctx, u)
	time.AfterFunc(time.Second, func() { u.Close() }) // the last answers are still on their way
	receiving.Wait()
	if _, err := exchange(c.(*net.TCPConn), bytes.Repeat(secret, 1000)); err != nil {
		p.TCP = err.Error()
	}
	return json.NewEncoder(os.Stdout).Encode(p)
}

func (p *Probe) send(ctx context.Context, u net.Conn) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			p.Sent++
			p.Paused, last = max(p.Paused, time.Since(last)), time.Now()
			_, _ = u.Write(append(binary.BigEndian.AppendUint64(nil, uint64(p.Sent)), secret...))
		}
	}
}

func (p *Probe) receive(u net.Conn) {
	b := make([]byte, 2048)
	var last time.Time
	for {
		_, err := u.Read(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // an ICMP error: the server's port is closed for a moment
			continue
		}
		now := time.Now()
		if p.Received++; p.Received == 1 {
			fmt.Println("answered")
		} else {
			p.Longest = max(p.Longest, now.Sub(last))
		}
		last = now
	}
}
