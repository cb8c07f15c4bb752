// SPDX-License-Identifier: Apache-2.0

package device

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/pace"
)

func TestRejectedHandshakeLogIsRateLimited(t *testing.T) {
	var b bytes.Buffer
	now := int64(time.Hour)
	d := &Device{log: slog.New(slog.NewTextHandler(&b, nil)), clock: func() int64 { return now }}
	d.inbound.dev = d
	from := underlay.Endpoint{Dst: netip.MustParseAddrPort("192.0.2.1:7")}
	for range 1000 {
		if got := d.inbound.logRefusal(drop.HSReplay, from, noise.PublicKey{1}); got != drop.HSReplay {
			t.Fatal(got)
		}
	}
	if n := strings.Count(b.String(), "\n"); n != pace.Burst {
		t.Errorf("%d lines", n)
	}
	b.Reset()
	now += int64(time.Minute)
	d.inbound.logRefusal(drop.HSBadMAC1, from, noise.PublicKey{})
	got := b.String()
	if !strings.Contains(got, " msg=\"handshake message refused and dropped\" suppressed=992 reason="+drop.HSBadMAC1.String()+" endpoint=192.0.2.1:7\n") {
		t.Errorf("got %q", got)
	}
	if strings.Contains(got, "peer") {
		t.Errorf("the log does not name the peer: %q", got)
	}
}
