// SPDX-License-Identifier: Apache-2.0

package attack

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/test/program"
)

var (
	duration = flag.Duration("attack", 0, "how long each attack lasts beside traffic, at most a minute; 0 sends a few thousand packets of each")
	mode     = flag.String("underlay", "udp", "underlay of the attacked tunnel")
	guard    = flag.Bool("guard", false, "attack through the device of the tunnel, where -underlay xdp has its guard, instead of another one")
	rate     = flag.Int("rate", 100_000, "packets per second of an attack")
	rounds   = flag.Int("rounds", 3, "how often each attack is compared with none, and with its packets to a port without a listener")
	only     = flag.String("only", "", "measure only the attacks whose name contains this text")
	ropewalk = program.Ropewalk()
)

// maxDuration bounds an attack.
const maxDuration = time.Minute

func TestMain(m *testing.M) {
	flag.Parse()
	if err := checkFlags(*duration, *rate, *rounds, *only); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	os.Exit(program.Main(m, ropewalk))
}

// checkFlags fails if the values of -attack, -rate, -rounds or -only have no meaning. The daemon checks that of -underlay.
func checkFlags(duration time.Duration, rate, rounds int, only string) error {
	switch {
	case duration < 0 || duration > maxDuration:
		return fmt.Errorf("-attack %s: want 0 to %s", duration, maxDuration)
	case rate <= 0:
		return errors.New("-rate: want at least 1")
	case rounds < 2:
		return errors.New("-rounds: want at least 2, one has no standard error")
	case !slices.ContainsFunc(attacks, func(a attack) bool { return strings.Contains(a.name, only) }):
		return fmt.Errorf("-only %q: no attack has that in its name", only)
	}
	return nil
}

func TestWrongFlagsAreRefused(t *testing.T) {
	for _, c := range []struct {
		duration time.Duration
		rate     int
		rounds   int
		only     string
		ok       bool
	}{
		{0, 1, 2, "", true},
		{maxDuration, 100_000, 40, "valid mac1", true},
		{-time.Second, 1, 3, "", false},
		{maxDuration + 1, 1, 3, "", false},
		{time.Second, 0, 3, "", false},
		{time.Second, -1, 3, "", false},
		{time.Second, 1, 1, "", false},
		{time.Second, 1, 3, "valid mac2", false},
	} {
		if err := checkFlags(c.duration, c.rate, c.rounds, c.only); (err == nil) != c.ok {
			t.Errorf("-attack %s -rate %d -rounds %d -only %q: got error %v, want none: %t", c.duration, c.rate, c.rounds, c.only, err, c.ok)
		}
	}
}
