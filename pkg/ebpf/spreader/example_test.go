// SPDX-License-Identifier: Apache-2.0

package spreader_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
)

// Spread in front of an in-kernel WireGuard that listens on port 51820 and sends through eth0. It needs CAP_NET_ADMIN, CAP_BPF and
// CAP_PERFMON. Programs stay attached after the process has ended, until Detach.
func Example() {
	var host spreader.Host // the network namespace of the calling thread
	if err := spreadAndShow(context.Background(), &host, spreader.Config{Device: "eth0", Port: 51820}, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// spreadAndShow attaches, prints the status, and detaches.
func spreadAndShow(ctx context.Context, host *spreader.Host, cfg spreader.Config, out io.Writer) error {
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
	return host.Detach(ctx, cfg.Port)
}
