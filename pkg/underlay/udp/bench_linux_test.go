// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"testing"

	"github.com/ropewalk/ropewalk/pkg/underlay"
)

// BenchmarkTrain sends and receives one run of 45 x 1452 bytes over loopback.
func BenchmarkTrain(b *testing.B) { benchmark(b, Config{}, 1, 45, 1452) }

// BenchmarkTrainSingly is BenchmarkTrain without UDP_SEGMENT and UDP_GRO.
func BenchmarkTrainSingly(b *testing.B) { benchmark(b, Config{NoGSO: true, NoGRO: true}, 1, 45, 1452) }

// BenchmarkSmall sends and receives 64 single datagrams of 64 bytes in one batch.
func BenchmarkSmall(b *testing.B) { benchmark(b, Config{}, 64, 1, 64) }

// BenchmarkSmallFromSources is BenchmarkSmall with the batch from 16 sources: a system call for each four datagrams.
func BenchmarkSmallFromSources(b *testing.B) { benchmarkSources(b, Config{}, 16, 64, 1, 64) }

func benchmark(b *testing.B, c Config, runs, segments, size int) {
	benchmarkSources(b, c, 0, runs, segments, size)
}

// benchmarkSources sends from the canonical port, or from that many sources in equal parts.
func benchmarkSources(b *testing.B, c Config, sources, runs, segments, size int) {
	enterNamespace(b)
	from, at := open(b, c), open(b, c)
	for range sources {
		openSource(b, from)
	}
	to := loopback(at, false)
	batch := make([]underlay.Run, runs)
	for i := range batch {
		batch[i] = underlay.Run{To: &to, Parts: [][]byte{make([]byte, segments*size)}, SegSize: size, Segments: segments}
		if sources > 0 {
			batch[i].Source = 1 + i*sources/runs
		}
	}
	rx := make([]underlay.Datagrams, 64)
	for i := range rx {
		rx[i].Buf = make([]byte, 65535)
	}
	b.SetBytes(int64(runs * segments * size))
	b.ReportAllocs()
	for b.Loop() {
		if from.Lane(0).Send(batch) != 0 {
			b.Fatal(batch[0].Err)
		}
		for got := 0; got < runs*segments*size; {
			n, err := at.Lane(0).Recv(rx)
			if err != nil {
				b.Fatal(err)
			}
			for i := range n {
				got += rx[i].N
			}
		}
	}
}
