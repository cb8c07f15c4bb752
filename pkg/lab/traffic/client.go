// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

// replyTimeout is how long the client waits for the server's report, including the server's drainLimit.
const replyTimeout = 2 * drainLimit

// clientRun is the sending side of one run.
type clientRun struct {
	cfg   Config
	key   uint64
	body  []byte
	ctl   *control
	begin time.Time
	tcp   []*net.TCPConn
	udp   []*net.UDPConn

	res Result
	rtt []time.Duration
}

// Run sends traffic as configured and returns the result. Loss and corruption are part of the Result and not errors. An error
// means that the run could not start or finish. If ctx is done, Run returns its cause.
func Run(ctx context.Context, cfg Config) (Result, error) {
	if err := cfg.complete(); err != nil {
		return Result{}, fmt.Errorf("preparing traffic: %w", err)
	}
	r := &clientRun{cfg: cfg, key: newKey(), res: Result{Kind: cfg.Kind, Streams: make([]Stream, cfg.Streams)}}
	r.body = newBody(r.key)
	defer r.close()
	err := r.run(ctx)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return Result{}, fmt.Errorf("running %s traffic to %s: %w", cfg.Kind, cfg.Server, err)
	}
	r.res.sum()
	return r.res, nil
}

func newKey() uint64 {
	var b [8]byte
	_, _ = crand.Read(b[:]) // never fails
	return binary.BigEndian.Uint64(b[:])
}

func (r *clientRun) run(ctx context.Context) error {
	if err := r.open(ctx); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, r.close)()
	replies := make(chan reply, 1)
	r.begin = time.Now()
	go func() { replies <- r.listen() }()
	err := r.sendAll()
	if err == nil {
		_ = r.ctl.SetReadDeadline(time.Now().Add(replyTimeout))
		err = r.ctl.write(message{Done: &doneMsg{Sent: r.sent()}})
	}
	if err != nil {
		r.close() // ends listen, so that Progress is not called after Run returns
	}
	got := <-replies
	if err = errors.Join(err, got.err); err != nil {
		return err
	}
	return r.merge(got.report)
}

// open requests the run from the server and opens the streams.
func (r *clientRun) open(ctx context.Context) error {
	conn, err := r.dialTCP(ctx)
	if err != nil {
		return err
	}
	r.ctl = newControl(conn)
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	_ = conn.SetDeadline(time.Now().Add(helloTimeout))
	err = r.ctl.write(message{Open: &openMsg{Key: r.key, Kind: r.cfg.Kind, Streams: r.cfg.Streams, Size: r.cfg.Size, Warmup: r.cfg.Warmup}})
	if err != nil {
		return err
	}
	m, err := r.ctl.read()
	if err != nil {
		return err
	}
	_ = conn.SetDeadline(time.Time{})
	if r.cfg.Kind == TCP {
		return r.openTCP(ctx)
	}
	if m.Ready == nil || len(m.Ready.Ports) != r.cfg.Streams {
		return errors.New("the server did not open a port for each stream")
	}
	return r.openUDP(m.Ready.Ports)
}

func (r *clientRun) dialTCP(ctx context.Context) (conn *net.TCPConn, err error) {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	err = r.cfg.InNamespace.do(func() error {
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", r.cfg.Server.String())
		if err == nil {
			conn = c.(*net.TCPConn)
		}
		return err
	})
	return conn, err
}

func (r *clientRun) openTCP(ctx context.Context) error {
	for i := range r.cfg.Streams {
		conn, err := r.dialTCP(ctx)
		if err != nil {
			return err
		}
		r.tcp = append(r.tcp, conn)
		if err := setCongestion(conn, r.cfg.Congestion); err != nil {
			return err
		}
		if err := newControl(conn).write(message{Data: &dataMsg{Key: r.key, Stream: i}}); err != nil {
			return err
		}
	}
	return nil
}

func (r *clientRun) openUDP(ports []uint16) error {
	return r.cfg.InNamespace.do(func() error {
		for _, port := range ports {
			to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(r.cfg.Server.Addr(), port))
			conn, err := net.DialUDP("udp", nil, to)
			if err != nil {
				return err
			}
			r.udp = append(r.udp, conn)
		}
		return nil
	})
}

type reply struct {
	report *reportMsg
	err    error
}

// listen calls Progress with the server's progress messages until the report arrives.
func (r *clientRun) listen() reply {
	for {
		m, err := r.ctl.read()
		switch {
		case err != nil:
			return reply{err: err}
		case m.Report != nil:
			return reply{report: m.Report}
		case m.Progress != nil && r.cfg.Progress != nil:
			r.cfg.Progress(Progress{Elapsed: time.Since(r.begin), Received: *m.Progress})
		}
	}
}

// sendAll runs all senders in parallel, and returns when the last has finished.
func (r *clientRun) sendAll() error {
	errs := make([]error, r.cfg.Streams)
	end := r.begin.Add(r.cfg.Duration)
	var wg sync.WaitGroup
	for i := range r.cfg.Streams {
		wg.Go(func() { errs[i] = r.send(i, end) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (r *clientRun) send(i int, end time.Time) (err error) {
	head := header{key: r.key, stream: uint32(i), size: uint32(r.cfg.Size)}
	s := &r.res.Streams[i]
	switch r.cfg.Kind {
	case TCP:
		head.size = chunkLen
		s.SentBytes, err = sendStream(r.tcp[i], head, r.body, r.pace(), end)
	case Ping:
		return r.ping(i, head, end)
	case UDP:
		u := &datagramSender{conn: r.udp[i], head: head, body: r.body, train: r.cfg.Train}
		s.SentPackets, err = u.send(r.pace(), end)
		s.SentBytes = s.SentPackets * uint64(r.cfg.Size)
		if i == 0 {
			r.res.Size, r.res.Train = r.cfg.Size, u.train
		}
	}
	return err
}

// pace returns the pace of one stream.
func (r *clientRun) pace() pace {
	return newPace(r.cfg.BitsPerSecond/float64(r.cfg.Streams), r.begin)
}

func (r *clientRun) sent() []uint64 {
	out := make([]uint64, len(r.res.Streams))
	for i, s := range r.res.Streams {
		out[i] = s.SentPackets
		if r.cfg.Kind == TCP {
			out[i] = s.SentBytes
		}
	}
	return out
}

func (r *clientRun) merge(report *reportMsg) error {
	if len(report.Streams) != len(r.res.Streams) {
		return errors.New("the server's report has a wrong number of streams")
	}
	if r.cfg.Kind == Ping {
		r.res.Latency = latencyOf(r.rtt)
		return nil
	}
	for i, s := range report.Streams {
		own := &r.res.Streams[i]
		own.Counts, own.Seconds, own.WarmupBytes = s.Counts, s.Seconds, s.WarmupBytes
	}
	for i, conn := range r.tcp {
		own := &r.res.Streams[i]
		own.TransmittedBytes, own.RetransmittedBytes = transmitted(conn)
	}
	return nil
}

// close closes all connections, which ends all blocking calls on them.
func (r *clientRun) close() {
	if r.ctl != nil {
		r.ctl.Close()
	}
	for _, c := range r.tcp {
		c.Close()
	}
	for _, c := range r.udp {
		c.Close()
	}
}
