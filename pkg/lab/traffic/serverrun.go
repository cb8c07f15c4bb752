// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

const (
	drainQuiet = 300 * time.Millisecond // if nothing arrives for so long, the missing datagrams are lost
	drainLimit = 10 * time.Second
	drainTick  = 10 * time.Millisecond
)

// serverRun is the receiving side of one run.
type serverRun struct {
	open     openMsg
	body     []byte
	counters []counters
	conns    []*net.UDPConn
	wg       sync.WaitGroup

	mu     sync.Mutex
	err    error // the first error of a receiver
	tcp    []net.Conn
	closed bool
}

func newServerRun(open openMsg) (*serverRun, error) {
	check := Config{Kind: open.Kind, Streams: open.Streams, Size: open.Size, Duration: open.Warmup + time.Second, Warmup: open.Warmup}
	if err := check.complete(); err != nil {
		return nil, err
	}
	return &serverRun{
		open: open, body: newBody(open.Key),
		counters: make([]counters, check.Streams), tcp: make([]net.Conn, check.Streams),
	}, nil
}

// listen opens one socket per UDP stream, so that streams do not wait for each other.
func (r *serverRun) listen(local netip.Addr) error {
	if r.open.Kind == TCP {
		return nil
	}
	addr := net.UDPAddrFromAddrPort(netip.AddrPortFrom(local, 0))
	for range r.counters {
		conn, err := net.ListenUDP("udp", addr)
		if err != nil {
			return fmt.Errorf("listening for datagrams: %w", err)
		}
		r.conns = append(r.conns, conn)
	}
	return nil
}

func (r *serverRun) ports() []uint16 {
	var ports []uint16
	for _, c := range r.conns {
		ports = append(ports, c.LocalAddr().(*net.UDPAddr).AddrPort().Port())
	}
	return ports
}

func (r *serverRun) start() {
	for i, conn := range r.conns {
		r.wg.Go(func() { r.fail(r.receiveUDP(i, conn)) })
	}
}

func (r *serverRun) receiveUDP(i int, conn *net.UDPConn) error {
	if r.open.Kind == Ping {
		return echoDatagrams(conn, r.open.Key, &r.counters[i])
	}
	prepareReceiver(conn)
	d := &datagramReceiver{head: header{key: r.open.Key, stream: uint32(i)}, body: r.body, counters: &r.counters[i]}
	return d.receive(conn)
}

// receiveTCP reads a stream's connection to its end. It ignores a second connection for the same stream.
func (r *serverRun) receiveTCP(c *control, stream int) {
	r.mu.Lock()
	if r.closed || r.tcp[stream] != nil {
		r.mu.Unlock()
		return
	}
	r.tcp[stream] = c.Conn
	r.wg.Add(1)
	r.mu.Unlock()
	defer r.wg.Done()
	v := newVerifier(r.open.Key, uint32(stream), r.body)
	r.fail(receiveStream(c.r, v, &r.counters[stream], r.open.Warmup))
}

func (r *serverRun) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = err
	}
}

func (r *serverRun) counts() Counts {
	var sum Counts
	for i := range r.counters {
		sum.add(r.counters[i].counts())
	}
	return sum
}

// reportProgress sends progress messages until the client reports how much it sent, and returns that, by stream.
func (r *serverRun) reportProgress(c *control) ([]uint64, error) {
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				counts := r.counts()
				// If the client is gone, the read below fails.
				_ = c.write(message{Progress: &counts})
			}
		}
	}()
	m, err := c.read()
	close(stop)
	<-stopped
	switch {
	case err != nil:
		return nil, err
	case m.Done == nil || len(m.Done.Sent) != len(r.counters):
		return nil, errors.New("the client did not report how much it sent")
	}
	return m.Done.Sent, nil
}

// drain waits until all data has arrived, or none has arrived for quietLimit, and then closes the run.
func (r *serverRun) drain(ctx context.Context, sent []uint64) error {
	tick := time.NewTicker(drainTick)
	defer tick.Stop()
	begin := time.Now()
	last, lastChange := r.counts(), begin
	for !r.complete(sent) {
		select {
		case <-ctx.Done():
			return errors.New("the server is stopping")
		case now := <-tick.C:
			if counts := r.counts(); counts != last {
				last, lastChange = counts, now
			}
			if now.Sub(begin) > drainLimit || now.Sub(lastChange) > r.quietLimit() {
				return r.close()
			}
		}
	}
	return r.close()
}

// quietLimit is the time without new data after which a run ends. It is longer for TCP, which retransmits.
func (r *serverRun) quietLimit() time.Duration {
	if r.open.Kind == TCP {
		return drainLimit
	}
	return drainQuiet
}

func (r *serverRun) complete(sent []uint64) bool {
	for i := range r.counters {
		got := r.counters[i].packets.Load()
		if r.open.Kind == TCP {
			got = r.counters[i].bytes.Load()
		}
		if got < sent[i] {
			return false
		}
	}
	return true
}

func (r *serverRun) report() *reportMsg {
	m := &reportMsg{}
	for i := range r.counters {
		m.Streams = append(m.Streams, r.counters[i].stream())
	}
	return m
}

// close stops the receivers, waits for them, and returns the first of their errors.
func (r *serverRun) close() error {
	r.mu.Lock()
	r.closed = true
	tcp := r.tcp
	r.mu.Unlock()
	for _, c := range r.conns {
		c.Close()
	}
	for _, c := range tcp {
		if c != nil {
			_ = c.SetReadDeadline(time.Now())
		}
	}
	r.wg.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}
