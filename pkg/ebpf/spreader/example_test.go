// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"strings"
	"testing"
)

// Spread in front of an in-kernel WireGuard that listens on port 51820 and sends through eth0. It needs CAP_NET_ADMIN, CAP_BPF and
// CAP_PERFMON. Programs stay attached after the process has ended, until Detach.
func Example() {
	var host Host // the network namespace of the calling thread
	if err := spreadAndShow(context.Background(), &host, Config{Device: "eth0", Port: 51820}, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// spreadAndShow attaches, prints the status, and detaches.
func spreadAndShow(ctx context.Context, host *Host, cfg Config, out io.Writer) error {
	report, err := host.Attach(ctx, cfg)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: %d peer over %d source ports\n", report.Tunnel, len(report.Peers), len(report.Lanes))
	devices, err := host.Status(ctx, cfg.Device)
	if err != nil {
		return err
	}
	for _, d := range devices {
		fmt.Fprintf(out, "%s: %d tunnel, %d problems\n", d.Device, len(d.Tunnels), len(d.Problems))
	}
	return host.Detach(ctx, cfg.Device, cfg.Port)
}

func TestExampleAttachesShowsAndDetaches(t *testing.T) {
	r := newRig(t)
	r.here.attach(r.here.config()) // skips where the kernel cannot
	var out strings.Builder
	cfg := r.here.config()
	cfg.Lanes = 16
	r.here.do(func() error { return spreadAndShow(t.Context(), r.here.host, cfg, &out) })
	if want := "wg0: 1 peer over 16 source ports\ncable.7: 1 tunnel, 0 problems\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
	r.here.do(func() error {
		devices, err := r.here.host.Status(t.Context(), "")
		if len(devices) != 0 {
			t.Errorf("still attached: got %+v, want length 0", devices)
		}
		return err
	})
}
