// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"fmt"
	"slices"
	"testing"
)

// script drives Timers on a simulated clock, checking only when Next says so, and logs the actions.
type script struct {
	Timers
	act             Activity
	now             int64
	log             []string
	initiationsFail bool
}

func newScript() *script { return &script{now: t0} }

// until runs the clock to t0+at.
func (s *script) until(at int64) {
	for {
		next := s.Next(s.now, &s.act)
		if next == 0 || next > t0+at {
			break
		}
		s.now = max(s.now, next)
		s.apply(s.Fire(s.now, &s.act))
	}
	s.now = t0 + at
}

func (s *script) apply(actions Actions) {
	if actions == 0 {
		return
	}
	s.log = append(s.log, fmt.Sprintf("%.1f %v", float64(s.now-t0)/float64(sec), actions))
	if actions.Has(SendInitiation) && !s.initiationsFail {
		s.initiate()
	}
	if actions.Has(SendKeepalive) {
		s.act.Sent(s.now, false)
	}
}

func (s *script) initiate() {
	s.act.Sent(s.now, false)
	s.InitiationSent(s.now, 0)
}

func (s *script) expect(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(s.log, want) {
		t.Errorf("got actions %q,\nwant        %q", s.log, want)
	}
}

func TestTimersOfAnIdlePeerNeverFire(t *testing.T) {
	s := newScript()
	if next := s.Next(s.now, &s.act); next != 0 {
		t.Errorf("an idle peer: got next check at %d, want none", next)
	}
	if actions := s.Fire(s.now, &s.act); actions != 0 {
		t.Errorf("an idle peer: got actions %v, want none", actions)
	}
}

func TestHandshakeRetriesEvery5sAndStopsAfter90s(t *testing.T) {
	s := newScript()
	if !s.HandshakeWanted(s.now) {
		t.Fatal("HandshakeWanted of a new peer = false, want true")
	}
	s.initiate()
	s.until(2000 * sec)
	var want []string
	for at := 5; at < 90; at += 5 {
		want = append(want, fmt.Sprintf("%d.0 clear-source+send-initiation", at))
	}
	s.expect(t, append(want, "90.0 give-up", "630.0 erase-sessions")...)
}

func TestHandshakeIsRetriedWhenInitiationFails(t *testing.T) {
	s := newScript()
	s.initiationsFail = true
	s.HandshakeWanted(s.now)
	s.InitiationSent(s.now, 0)
	s.until(16 * sec)
	s.expect(t, "5.0 clear-source+send-initiation", "10.0 clear-source+send-initiation", "15.0 clear-source+send-initiation")
}

func TestRetryWaitsForItsJitter(t *testing.T) {
	for _, tt := range []struct{ jitter, want int64 }{
		{0, RekeyTimeout}, {200 * ms, RekeyTimeout + 200*ms}, {10 * sec, RekeyTimeout + MaxJitter}, {-sec, RekeyTimeout},
	} {
		s := newScript()
		s.InitiationSent(s.now, tt.jitter)
		if next := s.Next(s.now, &s.act); next != t0+tt.want {
			t.Errorf("jitter %d: got a retry after %d ns, want %d", tt.jitter, next-t0, tt.want)
		}
	}
}

func TestInitiationsAreFiveSecondsApart(t *testing.T) {
	s := newScript()
	s.HandshakeWanted(s.now)
	s.initiate()
	if s.HandshakeWanted(s.now + 10*sec) {
		t.Error("HandshakeWanted during a handshake = true, want false")
	}
	s.HandshakeComplete()
	if s.HandshakeWanted(s.now + RekeyTimeout - 1) {
		t.Error("HandshakeWanted less than 5 s after the last initiation = true, want false")
	}
	if !s.HandshakeWanted(s.now + RekeyTimeout) {
		t.Error("HandshakeWanted 5 s after the last initiation = false, want true")
	}
}

func TestNewTrafficExtendsHandshakeInFlight(t *testing.T) {
	s := newScript()
	s.HandshakeWanted(s.now)
	s.initiate()
	s.until(60 * sec)
	s.HandshakeWanted(s.now)
	s.until(149 * sec)
	if slices.Contains(s.log, "90.0 give-up") {
		t.Error("the handshake was given up after 90 s, want it continued while packets are sent")
	}
	s.until(151 * sec)
	if got := s.log[len(s.log)-1]; got != "150.0 give-up" {
		t.Errorf("got last action %q, want \"150.0 give-up\"", got)
	}
}

func TestHandshakeCanRestartAfterGivingUp(t *testing.T) {
	s := newScript()
	s.HandshakeWanted(s.now)
	s.initiate()
	s.until(100 * sec)
	if !s.HandshakeWanted(s.now) {
		t.Fatal("HandshakeWanted = false, want true")
	}
	s.log = nil
	s.initiate()
	s.until(106 * sec)
	s.expect(t, "105.0 clear-source+send-initiation")
}

func TestCompletionEndsTheRetries(t *testing.T) {
	s := newScript()
	s.HandshakeWanted(s.now)
	s.initiate()
	s.until(sec)
	s.SessionDerived(s.now)
	s.HandshakeComplete()
	s.until(1000 * sec)
	s.expect(t, "541.0 erase-sessions")
}

func TestKeysAreErasedNineMinutesAfterTheLastNewSession(t *testing.T) {
	s := newScript()
	s.SessionDerived(s.now)
	s.until(500 * sec)
	s.SessionDerived(s.now)
	s.until(2000 * sec)
	s.expect(t, "1040.0 erase-sessions")
}

func TestFirstDataToResponderDoesNotPostponeErasure(t *testing.T) {
	s := newScript()
	s.ResponseSent(s.now)
	s.until(170 * sec)
	s.HandshakeComplete()
	s.until(2000 * sec)
	s.expect(t, "540.0 erase-sessions")
}

func TestReplacedIdentityWaitsForNoEarlierHandshake(t *testing.T) {
	s := newScript()
	s.HandshakeWanted(s.now)
	s.initiate()
	s.HandshakeComplete()
	s.IdentityReplaced(s.now)
	if !s.HandshakeWanted(s.now) {
		t.Error("HandshakeWanted after the private key changed = false, want true")
	}
	s.initiate()
	s.until(2 * sec)
	s.IdentityReplaced(s.now)
	s.until(6 * sec)
	s.expect(t, "2.0 clear-source+send-initiation")
}

func TestPassiveKeepaliveFollowsReceivedDataByTenSeconds(t *testing.T) {
	s := newScript()
	s.HandshakeComplete()
	s.until(3 * sec)
	s.act.Received(s.now, true)
	s.until(9 * sec)
	s.act.Received(s.now, true)
	s.until(60 * sec)
	s.expect(t, "13.0 send-keepalive")
}

func TestKeepalivesTriggerNoPassiveKeepalive(t *testing.T) {
	s := newScript()
	s.HandshakeComplete()
	s.act.Received(s.now, false)
	s.until(100 * sec)
	s.expect(t)
}

func TestSentDataCancelsPassiveKeepalive(t *testing.T) {
	s := newScript()
	s.HandshakeComplete()
	s.act.Received(s.now, true)
	s.until(9 * sec)
	s.act.Sent(s.now, true)
	s.until(10 * sec)
	s.act.Received(s.now, false)
	s.until(100 * sec)
	s.expect(t)
}

func TestUnansweredDataStartsNewHandshake(t *testing.T) {
	s := newScript()
	s.HandshakeWanted(s.now)
	s.InitiationSent(s.now, 300*ms)
	s.HandshakeComplete()
	s.until(20 * sec)
	s.act.Sent(s.now, true)
	s.until(30 * sec)
	s.act.Sent(s.now, true)
	s.until(36 * sec)
	s.expect(t, "35.3 clear-source+send-initiation")
}

func TestAuthenticatedMessageCancelsNewHandshake(t *testing.T) {
	s := newScript()
	s.HandshakeComplete()
	s.act.Sent(s.now, true)
	s.until(14 * sec)
	s.act.Received(s.now, false)
	s.until(100 * sec)
	s.expect(t)
}

func TestPersistentKeepaliveIsSentAtOnceAndWhenIdle(t *testing.T) {
	s := newScript()
	s.until(3 * sec)
	s.SetKeepalive(25)
	s.until(60 * sec)
	s.expect(t, "3.0 send-keepalive", "28.0 send-keepalive", "53.0 send-keepalive")
}

func TestPersistentKeepaliveIsNotSentWhenThereIsTraffic(t *testing.T) {
	s := newScript()
	s.SetKeepalive(25)
	s.until(20 * sec)
	s.act.Sent(s.now, false)
	s.until(40 * sec)
	s.act.Received(s.now, false)
	s.until(66 * sec)
	s.expect(t, "0.0 send-keepalive", "65.0 send-keepalive")
}

func TestPersistentKeepaliveIntervalChangesAtRuntime(t *testing.T) {
	s := newScript()
	s.SetKeepalive(100)
	s.until(20 * sec)
	s.SetKeepalive(30)
	s.until(31 * sec)
	s.SetKeepalive(0)
	s.until(500 * sec)
	s.SetKeepalive(65535)
	s.until(501 * sec)
	s.expect(t, "0.0 send-keepalive", "30.0 send-keepalive", "500.0 send-keepalive")
	if next := s.Next(s.now, &s.act); next != t0+500*sec+65535*sec {
		t.Errorf("got next keepalive at %d, want %d", next, t0+500*sec+65535*sec)
	}
}

func TestStopDisarmsTimersAndStartSendsKeepalive(t *testing.T) {
	s := newScript()
	s.SetKeepalive(25)
	s.until(sec)
	s.HandshakeWanted(s.now)
	s.initiate()
	s.SessionDerived(s.now)
	s.act.Sent(s.now, true)
	s.act.Received(s.now, true)
	s.log = nil
	s.Stop(&s.act)
	s.InitiationSent(s.now, 0)
	s.SessionDerived(s.now)
	if s.HandshakeWanted(s.now + 100*sec) {
		t.Error("HandshakeWanted of a stopped peer = true, want false")
	}
	s.until(1000 * sec)
	if actions := s.Fire(s.now, &s.act); actions != 0 {
		t.Errorf("a stopped peer: got actions %v, want none", actions)
	}
	s.Start()
	s.until(1001 * sec)
	s.expect(t, "1000.0 send-keepalive")
	if !s.HandshakeWanted(s.now) {
		t.Error("HandshakeWanted of a restarted peer = false, want true")
	}
}

func TestRekeyDueMatchesPaper(t *testing.T) {
	tests := []struct {
		name      string
		age       int64
		initiator bool
		sent      uint64
		receiving bool
		want      bool
	}{
		{"an initiator sends on a young session", 120*sec - 1, true, 5, false, false},
		{"an initiator sends after 120 s", 120 * sec, true, 5, false, true},
		{"a responder sends after 120 s", 179 * sec, false, 5, false, false},
		{"an initiator sends message 2^60", sec, true, 1 << 60, false, true},
		{"a responder sends message 2^60", sec, false, 1 << 60, false, true},
		{"a message before 2^60", sec, false, 1<<60 - 1, false, false},
		{"an initiator receives after 120 s", 165*sec - 1, true, 5, true, false},
		{"an initiator receives after 165 s", 165 * sec, true, 5, true, true},
		{"a responder receives after 165 s", 165 * sec, false, 5, true, false},
	}
	for _, tt := range tests {
		if got := RekeyDue(t0+tt.age, t0, tt.initiator, tt.sent, tt.receiving); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestConstantsMatchPaper(t *testing.T) {
	for name, pair := range map[string][2]int64{
		"Rekey-After-Time":          {RekeyAfterTime, 120 * sec},
		"Reject-After-Time":         {RejectAfterTime, 180 * sec},
		"Rekey-Attempt-Time":        {RekeyAttemptTime, 90 * sec},
		"Rekey-Timeout":             {RekeyTimeout, 5 * sec},
		"Keepalive-Timeout":         {KeepaliveTimeout, 10 * sec},
		"Max-Jitter":                {MaxJitter, 334 * ms},
		"Handshake-Initiation-Rate": {MinInitiationInterval, 20 * ms},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: got %d ns, want %d", name, pair[0], pair[1])
		}
	}
	if RekeyAfterMessages != 1<<60 {
		t.Errorf("got message limit %d, want 2^60", RekeyAfterMessages)
	}
}

func TestActionsHaveNames(t *testing.T) {
	if got := (SendInitiation | ClearSource).String(); got != "clear-source+send-initiation" {
		t.Errorf("got %q, want \"clear-source+send-initiation\"", got)
	}
	if got := Actions(0).String(); got != "none" {
		t.Errorf("got %q, want \"none\"", got)
	}
}

func TestTimersAllocateNothing(t *testing.T) {
	var timers Timers
	var a Activity
	timers.HandshakeComplete()
	now := t0
	if n := testing.AllocsPerRun(100, func() {
		now += sec
		timers.Fire(now, &a)
		timers.Next(now, &a)
	}); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}
