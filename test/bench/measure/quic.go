// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"bytes"
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

// quicBothWays measures a QUIC connection from A to B, which is the result, and then from B to A.
func quicBothWays(ctx context.Context, l *Lab, d time.Duration) (s testbed.Sample, err error) {
	if l.QUIC == "" {
		return testbed.Sample{}, errors.New("no program for QUIC: make bench-peers builds it, --quic names it")
	}
	server, err := testbed.StartListening(ctx, l.B.App, l.QUIC, "server", "--listen", fmt.Sprintf("0.0.0.0:%d", quicPort))
	if err != nil {
		return testbed.Sample{}, fmt.Errorf("starting a QUIC server: %w", err)
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	there, err := l.quic(ctx, d, false)
	if err != nil {
		return testbed.Sample{}, err
	}
	back, err := l.quic(ctx, d, true)
	return testbed.Sample{Value: there, More: map[string]float64{"reverse_gbps": back}}, err
}

// quic runs the client at A and returns the Gbit/s that were received, by the server or by the client.
func (l *Lab) quic(ctx context.Context, d time.Duration, reverse bool) (float64, error) {
	to := netip.AddrPortFrom(l.Addrs(l.B)[0], quicPort)
	cmd := l.A.App.Command(ctx, l.QUIC, "client", "--seconds", strconv.FormatFloat(d.Seconds(), 'f', -1, 64),
		"--reverse="+strconv.FormatBool(reverse), to.String())
	var log bytes.Buffer
	cmd.Stderr = &log
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("running QUIC traffic: %w: %s%s", err, out, log.Bytes())
	}
	var result struct {
		BitsPerSecond float64 `json:"bits_per_second"`
	}
	if err := json.Unmarshal(out, &result); err != nil {
		return 0, fmt.Errorf("parsing the QUIC client's result %q: %w", out, err)
	}
	return result.BitsPerSecond / 1e9, l.Err()
}
