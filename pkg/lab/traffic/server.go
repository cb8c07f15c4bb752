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
	helloTimeout  = 30 * time.Second
	progressEvery = 200 * time.Millisecond
)

// Server receives the traffic of runs. Several runs may be in progress at a time.
type Server struct {
	listener    *net.TCPListener
	inNamespace InNamespace

	mu   sync.Mutex
	runs map[uint64]*serverRun // by key, while they last
	wg   sync.WaitGroup
}

// ServerConfig configures a Server.
type ServerConfig struct {
	Addr        netip.AddrPort // where it listens; with port 0 the kernel selects a port
	InNamespace InNamespace
}

// Listen creates a Server and opens its socket, which Serve closes.
func Listen(cfg ServerConfig) (*Server, error) {
	s := &Server{inNamespace: cfg.InNamespace, runs: map[uint64]*serverRun{}}
	err := cfg.InNamespace.do(func() (err error) {
		s.listener, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(cfg.Addr))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listening for traffic on %s: %w", cfg.Addr, err)
	}
	return s, nil
}

// Addr returns the address on which the Server listens, for Config.Server.
func (s *Server) Addr() netip.AddrPort {
	return s.listener.Addr().(*net.TCPAddr).AddrPort()
}

// Serve accepts runs until ctx is done, then ends those in progress and returns nil. If a run fails, the client gets the error.
func (s *Server) Serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer s.wg.Wait()
	defer cancel()
	defer context.AfterFunc(ctx, func() { s.listener.Close() })()
	for {
		conn, err := s.listener.AcceptTCP()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return errors.Join(fmt.Errorf("accepting a run: %w", err), s.listener.Close())
		}
		s.wg.Go(func() { s.handle(ctx, conn) })
	}
}

// handle serves one connection: the control connection of a run, or a TCP stream.
func (s *Server) handle(ctx context.Context, conn *net.TCPConn) {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	c := newControl(conn)
	_ = conn.SetReadDeadline(time.Now().Add(helloTimeout))
	m, err := c.read()
	if err != nil {
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	switch {
	case m.Open != nil:
		if err := s.serveRun(ctx, c, *m.Open); err != nil {
			_ = c.write(message{Error: err.Error()})
		}
	case m.Data != nil:
		s.serveStream(c, *m.Data)
	}
}

func (s *Server) serveRun(ctx context.Context, c *control, open openMsg) error {
	run, err := newServerRun(open)
	if err != nil {
		return err
	}
	defer run.close()
	local := c.LocalAddr().(*net.TCPAddr).AddrPort().Addr()
	if err := s.inNamespace.do(func() error { return run.listen(local) }); err != nil {
		return err
	}
	if !s.register(run) {
		return errors.New("a run with this key is in progress")
	}
	defer s.forget(run)
	run.start()
	if err := c.write(message{Ready: &readyMsg{Ports: run.ports()}}); err != nil {
		return err
	}
	sent, err := run.reportProgress(c)
	if err != nil {
		return err
	}
	if err := run.drain(ctx, sent); err != nil {
		return err
	}
	return c.write(message{Report: run.report()})
}

func (s *Server) serveStream(c *control, data dataMsg) {
	s.mu.Lock()
	run := s.runs[data.Key]
	s.mu.Unlock()
	if run == nil || data.Stream < 0 || data.Stream >= len(run.counters) || run.open.Kind != TCP {
		return
	}
	run.receiveTCP(c, data.Stream)
}

func (s *Server) register(run *serverRun) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.runs[run.open.Key] != nil {
		return false
	}
	s.runs[run.open.Key] = run
	return true
}

func (s *Server) forget(run *serverRun) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.runs, run.open.Key)
}
