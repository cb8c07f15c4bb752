// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/testbed"
	"github.com/ropewalk/ropewalk/pkg/lab/traffic"
)

// Hosts are the measures between two machines, A and B. They are taken by OnPath. quic is the name of the program for QUIC traffic,
// empty if there is none.
func Hosts(quic string) (list []Measure) {
	for _, reverse := range []bool{false, true} {
		for _, streams := range []int{1, 4, 16, 64} {
			what := fmt.Sprintf("TCP, %d streams", streams)
			if streams == 1 {
				what = "TCP, 1 stream"
			}
			name := fmt.Sprintf("tcp%d", streams)
			if reverse {
				name, what = fmt.Sprintf("rev%d", streams), what+", from B to A"
			}
			list = append(list, Measure{
				Name: name, Unit: "Gbit/s", What: what,
				OnPath: testbed.Throughput(testbed.Flow{Config: traffic.Config{Kind: traffic.TCP, Streams: streams}, Reverse: reverse}),
			})
		}
	}
	list = append(list,
		Measure{Name: "ndr64", Unit: "kpps", What: "highest rate of 64 B datagrams that loses under 1 %", OnPath: testbed.NoDrop(64, testbed.NDRRates())},
		Measure{Name: "rtt_idle", Unit: "ms", What: "ICMP round trip, mean, idle", Lower: true, OnPath: testbed.IdleRTT},
		Measure{Name: "rtt_load", Unit: "ms", What: "ICMP round trip, mean, under TCP of 4 streams", Lower: true, OnPath: testbed.LoadedRTT})
	if quic == "" {
		return list
	}
	return append(list, Measure{
		Name: "quic", Unit: "Gbit/s", What: "one QUIC connection",
		OnPath: func(ctx context.Context, p testbed.Path, d time.Duration) (testbed.Sample, error) {
			at, ok := p.(Programs)
			if !ok {
				return testbed.Sample{}, errors.New("this path runs no programs")
			}
			return QUIC(ctx, at, quic, d)
		},
	})
}
