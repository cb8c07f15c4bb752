// SPDX-License-Identifier: Apache-2.0

package spread

import (
	"slices"
	"testing"
)

// checked is a Checks of two ports with a peer that answers at once, unless a check is lost.
type checked struct {
	c    *Checks
	peer Receipts
}

func newChecked() *checked { return &checked{c: NewChecks(2, 1<<32-3)} }

// step runs a round. listen, first and second tell which checks arrive. It returns whether the answer changed anything.
func (k *checked) step(listen, first, second bool) (changed bool) {
	k.c.Begin()
	for i, arrives := range []bool{first, second} {
		if k.c.Due(i, true) && arrives {
			k.peer.Note(i, k.c.Round())
		}
	}
	return listen && k.c.Answered(k.c.Round(), k.peer.AppendAges(nil, k.c.Round()))
}

func (k *checked) blocked() []bool { return []bool{k.c.Blocked(0), k.c.Blocked(1)} }

func TestPortIsBlockedAfterThreeLostChecks(t *testing.T) {
	for _, before := range []int{0, 1, 40} {
		k := newChecked()
		for range before {
			if k.step(true, true, true) {
				t.Fatalf("%d rounds before: a port was blocked", before)
			}
		}
		for lost := range 4 {
			changed := k.step(true, false, true)
			if want := lost == 3; changed != want || k.c.Blocked(0) != want || k.c.Blocked(1) {
				t.Errorf("%d rounds before, %d after: got blocked %v, changed %v, want the first port %v", before, lost, k.blocked(), changed, want)
			}
		}
	}
}

func TestBlockedPortOpensWithNextCheckThatArrives(t *testing.T) {
	k := newChecked()
	for range 4 {
		k.step(true, false, true)
	}
	for round := range blockedRounds {
		changed := k.step(true, true, true)
		if k.c.Blocked(0) {
			continue
		}
		if !changed || round == 0 {
			t.Errorf("round %d: got changed %v, want the port opened by a check after a pause", round, changed)
		}
		for range 3 {
			if k.step(true, false, true) {
				t.Error("blocked again by checks lost before")
			}
		}
		return
	}
	t.Errorf("still blocked after %d rounds", blockedRounds)
}

// TestPortsStayOpen has losses that say nothing about a port.
func TestPortsStayOpen(t *testing.T) {
	always, never := func(int) bool { return true }, func(int) bool { return false }
	odd := func(r int) bool { return r%2 == 1 }
	outage := func(r int) bool { return r < 5 || r > 20 }
	for name, c := range map[string]struct{ listen, port func(round int) bool }{
		"nothing lost":                     {always, always},
		"two of three lost":                {always, func(r int) bool { return r%3 == 2 }},
		"a peer that answers nothing":      {never, never},
		"an outage of all ports":           {outage, outage},
		"only the port's checks arrive":    {func(r int) bool { return r == 0 }, always},
		"both lost in every other round":   {odd, odd},
		"an outage, and then two lost":     {outage, func(r int) bool { return outage(r) && r != 21 && r != 22 }},
		"never answered after first round": {func(r int) bool { return r == 0 }, never},
	} {
		k := newChecked()
		for round := range 60 {
			if port := c.port(round); k.step(c.listen(round), port, port) {
				t.Errorf("%s: round %d changed the ports to %v", name, round, k.blocked())
			}
		}
	}
}

// TestLateAnswersKeepPortsOpen has a path whose round trip takes six rounds.
func TestLateAnswersKeepPortsOpen(t *testing.T) {
	k := newChecked()
	type answer struct {
		round uint32
		ages  []byte
	}
	var inFlight []answer
	for round := range 60 {
		k.step(false, true, true)
		inFlight = append(inFlight, answer{k.c.Round(), k.peer.AppendAges(nil, k.c.Round())})
		if round >= 6 {
			if k.c.Answered(inFlight[0].round, inFlight[0].ages) {
				t.Fatalf("round %d: got blocked %v, want none", round, k.blocked())
			}
			inFlight = inFlight[1:]
		}
	}
}

// TestReorderedChecksKeepPortsOpen has the checks of a round arrive behind the answered one.
func TestReorderedChecksKeepPortsOpen(t *testing.T) {
	k := newChecked()
	for round := range 60 {
		k.c.Begin()
		ages := k.peer.AppendAges(nil, k.c.Round())
		for i := range 2 {
			k.c.Due(i, true)
			k.peer.Note(i, k.c.Round())
		}
		if k.c.Answered(k.c.Round(), ages) {
			t.Fatalf("round %d: got blocked %v, want none", round, k.blocked())
		}
	}
}

// TestLossOnAllPortsBlocksUnusedOnes has data leave from one of eight ports.
func TestLossOnAllPortsBlocksUnusedOnes(t *testing.T) {
	for name, blocked := range map[string]func(port int) bool{
		"all":  func(int) bool { return true },
		"one":  func(port int) bool { return port == 0 },
		"none": func(int) bool { return false },
	} {
		c, peer := NewChecks(8, 3), Receipts{}
		for round := range 20 {
			c.Begin()
			for i := range 8 {
				if c.Due(i, i == 0) && !blocked(i) {
					peer.Note(i, c.Round())
				}
			}
			c.Answered(c.Round(), peer.AppendAges(nil, c.Round()))
			for i := range 8 {
				if got, want := c.Blocked(i), blocked(i) && round > 2; got != want {
					t.Errorf("%s blocked, round %d, port %d: got blocked %v, want %v", name, round, i, got, want)
				}
			}
			if got, want := c.InDoubt(), blocked(0) && round <= 2; got != want {
				t.Errorf("%s blocked, round %d: got in doubt %v, want %v", name, round, got, want)
			}
		}
	}
}

func TestPortBlockedBeforeOpensWithFirstCheck(t *testing.T) {
	c := NewChecks(2, 7)
	c.Block(1)
	if c.Begin(); !c.Due(1, false) || c.Due(0, false) {
		t.Error("the blocked port has no check, or the other has one without data")
	}
	if c.Answered(c.Round(), []byte{NeverArrived, NeverArrived}) || !c.Blocked(1) {
		t.Error("an answer without the check opens the port")
	}
	if !c.Answered(c.Round(), []byte{NeverArrived, 0}) || c.Blocked(1) {
		t.Error("a check that arrives leaves the port blocked")
	}
}

func TestForeignAnswersChangeNothing(t *testing.T) {
	k := newChecked()
	for range 3 {
		k.step(true, false, false)
	}
	now := k.c.Round()
	for name, a := range map[string]struct {
		round uint32
		ages  []byte
	}{
		"a later round":        {now + 1, []byte{0, 0}},
		"a round long ago":     {now - roundBits, []byte{0, 0}},
		"ages of no check":     {now, []byte{200, NeverArrived}},
		"ages of further ones": {now, slices.Repeat([]byte{NeverArrived}, 64)},
		"no ages":              {now, nil},
	} {
		if k.c.Answered(a.round, a.ages) {
			t.Errorf("%s: got blocked %v, want none", name, k.blocked())
		}
	}
}

func TestIdlePortsAreNotChecked(t *testing.T) {
	c := NewChecks(1, 0)
	c.Begin()
	if c.Due(0, false) {
		t.Error("a port that nothing uses is checked")
	}
	if !c.Due(0, true) {
		t.Error("a port in use is not checked")
	}
}

func TestReceiptsIgnoreInvalidPorts(t *testing.T) {
	var r Receipts
	r.Note(-1, 1)
	r.Note(MaxPorts, 1)
	r.Note(2, 5)
	if got := r.AppendAges(nil, 7); !slices.Equal(got, []byte{NeverArrived, NeverArrived, 2}) {
		t.Errorf("got ages %v, want 255, 255, 2", got)
	}
	if got := r.AppendAges(nil, 4); got[2] != NeverArrived {
		t.Errorf("of a round before: got age %d, want %d", got[2], NeverArrived)
	}
}
