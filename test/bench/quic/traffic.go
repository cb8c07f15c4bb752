// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"time"

	"github.com/quic-go/quic-go"
)

const (
	protocol = "ropewalk-bench"
	// window is the limit of flow control, so that it is not what limits a path with a delay.
	window = 64 << 20
	// chunk is the size of a write.
	chunk = 64 << 10
)

// order is the first line that the client sends.
type order struct {
	Reverse  bool          `json:"reverse"`
	Duration time.Duration `json:"duration"`
}

// result is the receiving end's count.
type result struct {
	Bytes         int64   `json:"bytes"`
	Seconds       float64 `json:"seconds"`
	BitsPerSecond float64 `json:"bits_per_second"`
}

func config() *quic.Config {
	return &quic.Config{
		InitialStreamReceiveWindow: window / 4, MaxStreamReceiveWindow: window,
		InitialConnectionReceiveWindow: window / 4, MaxConnectionReceiveWindow: window,
	}
}

// serve accepts connections until ctx is done.
func serve(ctx context.Context, address string) error {
	cert, err := newCertificate()
	if err != nil {
		return fmt.Errorf("making a certificate: %w", err)
	}
	l, err := quic.ListenAddr(address, &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{protocol}}, config())
	if err != nil {
		return fmt.Errorf("listening for QUIC on %s: %w", address, err)
	}
	defer l.Close()
	fmt.Printf("listening on %s\n", l.Addr())
	for {
		conn, err := l.Accept(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accepting a connection: %w", err)
		}
		// The client reports a run that failed.
		go func() { _ = answer(ctx, conn) }()
	}
}

// newCertificate makes a self-signed certificate, which nobody verifies: the lab has nobody else.
func newCertificate() (tls.Certificate, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}, err
}

// answer does what the client of a connection orders.
func answer(ctx context.Context, conn *quic.Conn) error {
	s, err := conn.AcceptStream(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	var o order
	d := json.NewDecoder(s)
	if err := d.Decode(&o); err != nil {
		return err
	}
	if o.Reverse {
		return send(s, o.Duration)
	}
	r, err := receive(io.MultiReader(d.Buffered(), s))
	if err != nil {
		return err
	}
	return json.NewEncoder(s).Encode(r)
}

// request runs the client's side of an order.
func request(ctx context.Context, address string, o order) (result, error) {
	conn, err := quic.DialAddr(ctx, address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocol}}, config())
	if err != nil {
		return result{}, fmt.Errorf("connecting to %s: %w", address, err)
	}
	defer func() { _ = conn.CloseWithError(0, "") }()
	s, err := conn.OpenStreamSync(ctx)
	if err != nil {
		return result{}, fmt.Errorf("opening a stream: %w", err)
	}
	if err := json.NewEncoder(s).Encode(o); err != nil {
		return result{}, fmt.Errorf("sending the order: %w", err)
	}
	if o.Reverse {
		return receive(s)
	}
	if err := send(s, o.Duration); err != nil {
		return result{}, err
	}
	var r result
	if err := json.NewDecoder(s).Decode(&r); err != nil {
		return result{}, fmt.Errorf("reading the result: %w", err)
	}
	return r, nil
}

// send sends for a time and ends the stream.
func send(s *quic.Stream, d time.Duration) error {
	buf := make([]byte, chunk)
	for end := time.Now().Add(d); time.Now().Before(end); {
		if _, err := s.Write(buf); err != nil {
			return fmt.Errorf("sending: %w", err)
		}
	}
	return s.Close()
}

// receive counts until the end of the stream. The time begins with the first bytes.
func receive(r io.Reader) (result, error) {
	var got result
	var begin time.Time
	buf := make([]byte, chunk)
	for {
		n, err := r.Read(buf)
		if begin.IsZero() && n > 0 {
			begin = time.Now()
		}
		got.Bytes += int64(n)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return result{}, fmt.Errorf("receiving: %w", err)
		}
	}
	if got.Bytes == 0 {
		return result{}, errors.New("nothing was received")
	}
	got.Seconds = time.Since(begin).Seconds()
	got.BitsPerSecond = float64(got.Bytes) * 8 / got.Seconds
	return got, nil
}
