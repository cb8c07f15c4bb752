// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/testbed"
)

// quicPort is where the QUIC server listens.
const quicPort = 5211

// Programs runs programs where the traffic of a path begins and ends.
type Programs interface {
	// Listen starts a server at B, and returns when it listens. stop ends it.
	Listen(ctx context.Context, program string, args ...string) (stop func() error, err error)
	// Run runs a program at A, and returns its output.
	Run(ctx context.Context, program string, args ...string) ([]byte, error)
	// To is the address of B.
	To() netip.Addr
}

// Listen implements Programs.
func (l *Lab) Listen(ctx context.Context, program string, args ...string) (stop func() error, err error) {
	p, err := testbed.StartListening(ctx, l.B.App, append([]string{program}, args...)...)
	if err != nil {
		return nil, err
	}
	return p.Stop, nil
}

// Run implements Programs. The end of a daemon is an error.
func (l *Lab) Run(ctx context.Context, program string, args ...string) ([]byte, error) {
	out, _, err := testbed.RunProgram(ctx, l.A.App, append([]string{program}, args...))
	return out, errors.Join(err, l.Err())
}

// To implements Programs.
func (l *Lab) To() netip.Addr { return l.Addrs(l.B)[0] }

func quicBothWays(ctx context.Context, l *Lab, d time.Duration) (testbed.Sample, error) {
	if l.QUIC == "" {
		return testbed.Sample{}, errors.New("no program for QUIC: make bench-peers builds it, --quic names it")
	}
	return QUIC(ctx, l, l.QUIC, d)
}

// QUIC measures a connection of test/bench/quic from A to B, which is the result, and then from B to A.
func QUIC(ctx context.Context, at Programs, program string, d time.Duration) (s testbed.Sample, err error) {
	stop, err := at.Listen(ctx, program, "server", "--listen", fmt.Sprintf("0.0.0.0:%d", quicPort))
	if err != nil {
		return testbed.Sample{}, fmt.Errorf("starting a QUIC server: %w", err)
	}
	defer func() { err = errors.Join(err, stop()) }()
	there, err := quicClient(ctx, at, program, d, false)
	if err != nil {
		return testbed.Sample{}, err
	}
	back, err := quicClient(ctx, at, program, d, true)
	return testbed.Sample{Value: there, More: map[string]float64{"reverse_gbps": back}}, err
}

// quicClient returns the Gbit/s that were received, by the server or by the client.
func quicClient(ctx context.Context, at Programs, program string, d time.Duration, reverse bool) (float64, error) {
	out, err := at.Run(ctx, program, "client", "--seconds", strconv.FormatFloat(d.Seconds(), 'f', -1, 64),
		"--reverse="+strconv.FormatBool(reverse), netip.AddrPortFrom(at.To(), quicPort).String())
	if err != nil {
		return 0, err
	}
	var result struct {
		BitsPerSecond float64 `json:"bits_per_second"`
	}
	if err := json.Unmarshal(out, &result); err != nil {
		return 0, fmt.Errorf("parsing the QUIC client's result %q: %w", out, err)
	}
	return result.BitsPerSecond / 1e9, nil
}
