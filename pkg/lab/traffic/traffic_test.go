// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// startServer serves on the loopback until the test ends, and fails the test if Serve fails or does not return.
func startServer(t *testing.T) *Server {
	t.Helper()
	s, err := Listen(ServerConfig{Addr: netip.MustParseAddrPort("127.0.0.1:0")})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(30 * time.Second):
			t.Error("Serve did not return")
		}
	})
	return s
}

func TestTCPStreamsArriveWhole(t *testing.T) {
	s := startServer(t)
	res, err := Run(t.Context(), Config{Kind: TCP, Server: s.Addr(), Streams: 3, Duration: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if res.Bytes == 0 || res.Bytes != res.SentBytes || res.LostBytes != 0 || res.Corrupt != 0 || len(res.Streams) != 3 {
		t.Errorf("got %+v", res)
	}
	for i, st := range res.Streams {
		if st.Bytes == 0 || st.Bytes != st.SentBytes {
			t.Errorf("stream %d: got %+v, want Bytes other than 0, Bytes %v", i, st, st.SentBytes)
		}
	}
}

func TestUDPStreamsAreCounted(t *testing.T) {
	for _, c := range []struct {
		name        string
		size, train int
	}{
		{"single datagrams", 200, 1},
		{"trains", 1000, 20},
		{"the smallest datagram", headerLen, 0},
		{"trains too long for one send", 1344, 64},
		{"datagrams larger than a train may hold", 40000, 8},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := startServer(t)
			res, err := Run(t.Context(), Config{
				Kind: UDP, Server: s.Addr(), Streams: 2, Duration: 200 * time.Millisecond,
				Size: c.size, Train: c.train, BitsPerSecond: 20e6,
			})
			if err != nil {
				t.Fatal(err)
			}
			// The loopback keeps order and duplicates nothing; a busy machine may lose.
			if res.Packets == 0 || res.Corrupt+res.Reordered+res.Duplicated != 0 {
				t.Errorf("got %+v", res)
			}
			if res.SentPackets != res.Packets+res.LostPackets || res.Bytes != res.Packets*uint64(c.size) {
				t.Errorf("sent packets are not received plus lost packets, or bytes do not match: %+v", res)
			}
			if res.Train*res.Size > maxSize || res.Train > max(c.train, 1) {
				t.Errorf("train %d of size %d", res.Train, res.Size)
			}
		})
	}
}

// TestTCPKeepsToItsRate checks the sum over all streams. A busy machine may send less than the rate, but not more: the socket
// buffers accept every write, so that the bytes sent are those that the pace allowed.
func TestTCPKeepsToItsRate(t *testing.T) {
	s := startServer(t)
	const rate, length = 100e6, 300 * time.Millisecond
	res, err := Run(t.Context(), Config{Kind: TCP, Server: s.Addr(), Streams: 2, Duration: length, BitsPerSecond: rate})
	if err != nil {
		t.Fatal(err)
	}
	// The first write of each stream is not delayed.
	most := uint64(rate/8*length.Seconds()) + 2*pacedChunks*chunkLen
	if res.Bytes == 0 || res.Corrupt != 0 || res.SentBytes > most {
		t.Errorf("got %d bytes sent, want at most %d: %+v", res.SentBytes, most, res)
	}
}

func TestPingMeasuresRoundTrips(t *testing.T) {
	s := startServer(t)
	res, err := Run(t.Context(), Config{Kind: Ping, Server: s.Addr(), Duration: 50 * time.Millisecond, Size: 64})
	if err != nil {
		t.Fatal(err)
	}
	l := res.Latency
	if l == nil || l.Min <= 0 || l.Min > l.P50 || l.P50 > l.P99 || l.P99 > l.Max || l.Mean > l.Max || l.Mean < l.Min {
		t.Errorf("got latency %+v, want non-nil", l)
	}
	if res.SentPackets == 0 || res.Packets != res.SentPackets {
		t.Errorf("got %+v, want SentPackets other than 0, Packets %v", res, res.SentPackets)
	}
}

func TestProgressIsReportedWhileTheRunLasts(t *testing.T) {
	s := startServer(t)
	var mu sync.Mutex
	var seen []Progress
	over := false
	_, err := Run(t.Context(), Config{
		Kind: TCP, Server: s.Addr(), Duration: time.Second,
		Progress: func(p Progress) {
			mu.Lock()
			defer mu.Unlock()
			if over {
				t.Error("Progress was called after Run returned")
			}
			seen = append(seen, p)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	over = true
	for i := 1; i < len(seen); i++ {
		if seen[i].Elapsed < seen[i-1].Elapsed || seen[i].Received.Bytes < seen[i-1].Received.Bytes {
			t.Errorf("progress decreased from %+v to %+v", seen[i-1], seen[i])
		}
	}
	if len(seen) == 0 {
		t.Error("Progress was never called")
	}
}

func TestRunsMayOverlap(t *testing.T) {
	s := startServer(t)
	var wg sync.WaitGroup
	for _, kind := range []Kind{TCP, UDP, Ping} {
		wg.Go(func() {
			res, err := Run(t.Context(), Config{
				Kind: kind, Server: s.Addr(), Duration: 100 * time.Millisecond, BitsPerSecond: 1e6,
			})
			if err != nil || res.Bytes == 0 || res.Corrupt != 0 {
				t.Errorf("%s: got %+v, error %v, want no error", kind, res, err)
			}
		})
	}
	wg.Wait()
}

func TestRunEndsWithItsContext(t *testing.T) {
	s := startServer(t)
	for _, kind := range []Kind{TCP, UDP, Ping} {
		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		// An hour: only the context can end this run.
		_, err := Run(ctx, Config{
			Kind: kind, Server: s.Addr(), Duration: time.Hour, BitsPerSecond: 1e6, Streams: 2,
			Progress: func(Progress) { cancel(cause) },
		})
		if !errors.Is(err, cause) {
			t.Errorf("%s: got error %v, want %v", kind, err, cause)
		}
		cancel(nil)
	}
}

func TestRunFailsWhenTheServerStops(t *testing.T) {
	s, err := Listen(ServerConfig{Addr: netip.MustParseAddrPort("127.0.0.1:0")})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { _ = s.Serve(ctx) }()
	_, err = Run(t.Context(), Config{
		Kind: TCP, Server: s.Addr(), Duration: time.Hour, Progress: func(Progress) { cancel() },
	})
	if err == nil {
		t.Error("Run returned no error after the server stopped")
	}
	cancel()
}

func TestRunRejectsInvalidConfig(t *testing.T) {
	for _, c := range []Config{
		{Kind: "icmp"},
		{},
		{Kind: TCP, Streams: MaxStreams + 1},
		{Kind: UDP, Size: headerLen - 1},
		{Kind: UDP, Size: -1},
		{Kind: UDP, Size: maxSize + 1},
		{Kind: UDP, BitsPerSecond: -1},
		{Kind: TCP, Duration: -1},
	} {
		if _, err := Run(t.Context(), c); err == nil {
			t.Errorf("%+v: got no error", c)
		}
	}
}

func TestServerSurvivesInvalidInput(t *testing.T) {
	s := startServer(t)
	for _, line := range []string{
		"\n", "GET / HTTP/1.1\r\n\r\n", "{}\n", "null\n", "[]\n", `{"open":{}}` + "\n",
		`{"open":{"kind":"udp","streams":1000000,"size":100}}` + "\n",
		`{"open":{"kind":"udp","streams":-5,"size":-100}}` + "\n",
		`{"data":{"key":1,"stream":-1}}` + "\n",
		`{"open":{"kind":"tcp","key":5}}` + "\n" + `{"done":{"sent":[1,2,3]}}` + "\n",
		strings.Repeat("x", maxLine+1),
	} {
		conn, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(s.Addr()))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write([]byte(line))
		_ = conn.CloseWrite()
		_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		buf := make([]byte, 4096)
		for err == nil {
			_, err = conn.Read(buf)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the server did not close the connection after %.40q", line)
		}
		conn.Close()
	}
	if _, err := Run(t.Context(), Config{Kind: TCP, Server: s.Addr(), Duration: 10 * time.Millisecond}); err != nil {
		t.Error(err)
	}
}

// TestCorruptStreamIsReported acts as a client that sends the pattern, and as one that changes a byte of it.
func TestCorruptStreamIsReported(t *testing.T) {
	s := startServer(t)
	for _, c := range []struct {
		name    string
		key     uint64 // different, since the server may still be closing the previous run
		flip    byte
		corrupt uint64
	}{{"intact", 7, 0, 0}, {"altered", 8, 1, 1}} {
		t.Run(c.name, func(t *testing.T) {
			payload := build(header{key: c.key, size: chunkLen}, 1, newBody(c.key))
			payload[5000] ^= c.flip
			st := playStream(t, s, c.key, payload)
			if st.Corrupt != c.corrupt || st.Bytes != chunkLen {
				t.Errorf("got %+v, want Corrupt %v, Bytes %v", st, c.corrupt, chunkLen)
			}
		})
	}
}

func playStream(t *testing.T, s *Server, key uint64, payload []byte) Stream {
	t.Helper()
	dial := func(first message) *control {
		conn, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(s.Addr()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
		c := newControl(conn)
		if err := c.write(first); err != nil {
			t.Fatal(err)
		}
		return c
	}
	ctl := dial(message{Open: &openMsg{Key: key, Kind: TCP, Streams: 1}})
	if m, err := ctl.read(); err != nil || m.Ready == nil {
		t.Fatal(m, err)
	}
	data := dial(message{Data: &dataMsg{Key: key}})
	if _, err := data.Write(payload); err != nil {
		t.Fatal(err)
	}
	if err := ctl.write(message{Done: &doneMsg{Sent: []uint64{uint64(len(payload))}}}); err != nil {
		t.Fatal(err)
	}
	for {
		m, err := ctl.read()
		if err != nil {
			t.Fatal(err)
		}
		if m.Report != nil {
			return m.Report.Streams[0]
		}
	}
}

func TestInNamespaceIsUsedForEverySocket(t *testing.T) {
	var mu sync.Mutex
	calls := 0
	inNamespace := func(f func() error) error {
		mu.Lock()
		calls++
		mu.Unlock()
		return f()
	}
	refuse := func(func() error) error { return fmt.Errorf("refused") }
	s := startServer(t)
	if _, err := Run(t.Context(), Config{
		Kind: UDP, Server: s.Addr(), Duration: 10 * time.Millisecond, InNamespace: inNamespace,
	}); err != nil || calls != 2 {
		t.Errorf("got %d calls, want 2, error %v", calls, err)
	}
	if _, err := Run(t.Context(), Config{Kind: UDP, Server: s.Addr(), InNamespace: refuse}); err == nil {
		t.Error("a socket was opened without InNamespace")
	}
	if _, err := Listen(ServerConfig{InNamespace: refuse}); err == nil {
		t.Error("a socket was opened without InNamespace")
	}
}

func TestResultIsFlatJSON(t *testing.T) {
	r := Result{Kind: UDP, Streams: []Stream{
		{SentPackets: 10, SentBytes: 1000, Counts: Counts{Packets: 8, Bytes: 800, Reordered: 1}, Seconds: 2},
		{SentPackets: 10, SentBytes: 1000, Counts: Counts{Packets: 10, Bytes: 1000}, Seconds: 1},
	}}
	r.sum()
	out, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"sent_packets":20`, `"packets":18`, `"lost_packets":2`, `"lost_bytes":200`, `"reordered":1`,
		`"bits_per_second":7200`, `"packets_per_second":9`,
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("got %s, want %s in it", out, want)
		}
	}
}
