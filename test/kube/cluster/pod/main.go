// SPDX-License-Identifier: Apache-2.0

// Command pod is the program in the test's pods. Without arguments it waits for SIGTERM, as a
// pause container does.
package main

import (
	"bytes"
	"cmp"
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
	"slices"
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
	case len(args) == 2 && args[0] == "connect":
		err = connect(args[1])
	case len(args) == 2 && args[0] == "chat":
		err = chat(args[1])
	case len(args) == 3 && args[0] == "probe":
		err = probe(args[1], args[2])
	default:
		err = fmt.Errorf("usage: pod [serve|dial|connect|chat ADDRESS:PORT] or pod probe ADDRESS:PORT INTERVAL, not %q", args)
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

// connectTimeout is how long connect waits for an answer.
const connectTimeout = 2 * time.Second

// connect connects, and sends nothing. It prints whether the server answers. A refused connection is an error.
func connect(addr string) error {
	c, err := net.DialTimeout("tcp", addr, connectTimeout)
	if os.IsTimeout(err) {
		fmt.Println("timeout")
		return nil
	}
	if err != nil {
		return err
	}
	fmt.Println("connected")
	return c.Close()
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
	// Gaps are the times in which all datagrams were lost, longest first.
	Gaps []Gap
	// Paused is the longest time between two datagrams: the prober had no CPU.
	Paused time.Duration
	// TCP is the error of a connection that was open all the time, or empty.
	TCP string
}

// Gap is a run of datagrams that were lost.
type Gap struct {
	Lost int
	// Began is when the first lost datagram was sent, since the first of all. Lasted is the time from then to the next datagram that was answered. Both
	// are times of sending: an answer that comes late makes no gap.
	Began, Lasted time.Duration
}

const (
	// maxGaps bounds the gaps of a Probe.
	maxGaps = 10
	// settled is how many answers show that the traffic flows, and that programs which have just been started take no CPU time any more.
	settled = 300
)

// probe sends datagrams to a server and keeps a connection open until its standard input ends, then prints a Probe. It prints
// a line whenever so many answers have arrived that the traffic flows.
func probe(addr, interval string) error {
	every, err := time.ParseDuration(interval)
	if err != nil {
		return err
	}
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
	answers := make(chan []bool)
	go func() { answers <- receive(u) }()
	sent := send(ctx, u, every)
	time.AfterFunc(time.Second, func() { u.Close() }) // the last answers are still on their way
	p := summarize(sent, <-answers)
	if _, err := exchange(c.(*net.TCPConn), bytes.Repeat(secret, 1000)); err != nil {
		p.TCP = err.Error()
	}
	return json.NewEncoder(os.Stdout).Encode(p)
}

// send sends datagrams with consecutive numbers, and returns the times since the first.
func send(ctx context.Context, u net.Conn, every time.Duration) (sent []time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	began := time.Now()
	for {
		select {
		case <-ctx.Done():
			return sent
		case <-tick.C:
			_, _ = u.Write(append(binary.BigEndian.AppendUint64(nil, uint64(len(sent))), secret...))
			sent = append(sent, time.Since(began))
		}
	}
}

// receive returns which datagrams were answered, once the socket is closed.
func receive(u net.Conn) (answered []bool) {
	b := make([]byte, 2048)
	for answers := 0; ; {
		n, err := u.Read(b)
		if errors.Is(err, net.ErrClosed) {
			return answered
		}
		if err != nil || n < 8 { // an ICMP error: the server's port is closed for a moment
			continue
		}
		if answers++; answers%settled == 0 {
			fmt.Println("answered")
		}
		number := int(binary.BigEndian.Uint64(b))
		answered = append(answered, make([]bool, max(0, number+1-len(answered)))...)
		answered[number] = true
	}
}

// summarize finds the gaps. Datagrams before the first answer do not count.
func summarize(sent []time.Duration, answered []bool) (p Probe) {
	first := max(0, slices.Index(answered, true))
	gap := Gap{}
	for i := first; i < len(sent); i++ {
		p.Sent++
		if i > first {
			p.Paused = max(p.Paused, sent[i]-sent[i-1])
		}
		if i >= len(answered) || !answered[i] {
			if gap.Lost == 0 {
				gap.Began = sent[i]
			}
			gap.Lost++
			gap.Lasted = sent[i] - gap.Began
			continue
		}
		p.Received++
		if gap.Lost > 0 {
			gap.Lasted = sent[i] - gap.Began
			p.Gaps, gap = append(p.Gaps, gap), Gap{}
		}
	}
	if gap.Lost > 0 {
		p.Gaps = append(p.Gaps, gap)
	}
	slices.SortFunc(p.Gaps, func(a, b Gap) int { return cmp.Compare(b.Lasted, a.Lasted) })
	p.Gaps = p.Gaps[:min(len(p.Gaps), maxGaps)]
	return p
}
