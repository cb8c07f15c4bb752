package auto

import (
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func cpu() time.Duration {
	var r unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

func TestZZCost(t *testing.T) {
	s := newScene(t)
	var peers []netip.Addr
	for i := range 64 {
		peers = append(peers, addr(byte(i+2)))
	}
	must(t, s.here.Do(func() error {
		c := cpu()
		for range 50 {
			gather(&question{peers: peers})
		}
		t.Logf("gather: %v CPU", (cpu()-c)/50)
		return nil
	}))
	k := newKnown(func() {})
	for i := range 10000 {
		k.AddSource(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}))
		k.AddIndex(uint32(i))
	}
	k.SetGuarded()
	c := cpu()
	for range 20 {
		k.state(64)
	}
	t.Logf("state of 10,000: %v", (cpu()-c)/20)
	var tl tally
	c = cpu()
	p, err := load(9, 2048, true, &tl)
	must(t, err)
	t.Logf("load: %v", cpu()-c)
	c = cpu()
	k.enter(p)
	t.Logf("enter: %v", cpu()-c)
	must(t, p.Close())
}
