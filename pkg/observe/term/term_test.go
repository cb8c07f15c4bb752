// SPDX-License-Identifier: Apache-2.0

package term

import (
	"math"
	"testing"
)

func TestNumberFormats(t *testing.T) {
	for got, want := range map[string]string{
		Thousands(0): "0", Thousands(999): "999", Thousands(1000): "1,000", Thousands(12345678): "12,345,678",
		BitRate(0): "0 bit/s", BitRate(1500): "1.50 kbit/s", BitRate(4.5e9): "4.50 Gbit/s",
		PacketRate(10): "10 packets/s", PacketRate(123456): "123 kpps",
		Percent(1, 0): "-", Percent(1, 8): "12.5%",
		Short(999_999): "999,999", Short(1e6): "1.00 M", Short(12_345_678): "12.3 M",
		Short(987_654_321): "988 M", Short(1.25e12): "1.25 T", Short(math.MaxUint64): "18.4 E",
		FineBar(0, 2): "  ", FineBar(1e-9, 2): "▏ ", FineBar(0.25, 2): "▌ ", FineBar(0.5, 2): "█ ", FineBar(0.9375, 2): "█▉", FineBar(7, 2): "██",
		Bar(0.5, 4, "."): "██..", Bar(7, 2, "."): "██", Bar(-1, 2, "."): "..",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestZeroStyleAddsNothing(t *testing.T) {
	for _, f := range []func(string) string{Style{}.Bold, Style{}.Good, Style{}.Warn, Style{}.Bad, Style{}.Faint, Style{}.Bar} {
		if got := f("x"); got != "x" {
			t.Errorf("got %q, want %q", got, "x")
		}
	}
	if got := (Style{Color: true}).Bad("x"); got != "\x1b[31;1mx\x1b[0m" {
		t.Errorf("got %q, want %q", got, "\x1b[31;1mx\x1b[0m")
	}
}
