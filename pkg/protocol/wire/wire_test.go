// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
)

// message returns size bytes that begin with head and go on with a count.
func message(size int, head ...byte) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i)
	}
	copy(b, head)
	return b
}

func TestClassifyAcceptsOnlyTheFourMessages(t *testing.T) {
	for _, tc := range []struct {
		name   string
		b      []byte
		want   Type
		reason drop.Reason
	}{
		{"nothing", nil, 0, drop.RXTooShort},
		{"a type alone", []byte{4, 0, 0, 0}, 0, drop.RXTooShort},
		{"one byte short of a keepalive", message(31, 4, 0, 0, 0), 0, drop.RXTooShort},
		{"a short initiation", message(31, 1, 0, 0, 0), 0, drop.RXTooShort},
		{"initiation", message(148, 1, 0, 0, 0), TypeInitiation, drop.None},
		{"initiation, a byte less", message(147, 1, 0, 0, 0), 0, drop.RXBadLength},
		{"initiation, a byte more", message(149, 1, 0, 0, 0), 0, drop.RXBadLength},
		{"response", message(92, 2, 0, 0, 0), TypeResponse, drop.None},
		{"response, a byte less", message(91, 2, 0, 0, 0), 0, drop.RXBadLength},
		{"response, a byte more", message(93, 2, 0, 0, 0), 0, drop.RXBadLength},
		{"cookie reply", message(64, 3, 0, 0, 0), TypeCookieReply, drop.None},
		{"cookie reply, a byte less", message(63, 3, 0, 0, 0), 0, drop.RXBadLength},
		{"cookie reply, a byte more", message(65, 3, 0, 0, 0), 0, drop.RXBadLength},
		{"keepalive", message(32, 4, 0, 0, 0), TypeData, drop.None},
		{"data that nobody padded", message(33, 4, 0, 0, 0), TypeData, drop.None},
		{"data", message(1452, 4, 0, 0, 0), TypeData, drop.None},
		{"type 0", message(148, 0, 0, 0, 0), 0, drop.RXBadType},
		{"type 5", message(148, 5, 0, 0, 0), 0, drop.RXBadType},
		{"first reserved byte", message(32, 4, 1, 0, 0), 0, drop.RXBadType},
		{"second reserved byte", message(148, 1, 0, 1, 0), 0, drop.RXBadType},
		{"third reserved byte", message(92, 2, 0, 0, 1), 0, drop.RXBadType},
	} {
		got, reason := Classify(tc.b)
		if got != tc.want || reason != tc.reason {
			t.Errorf("%s: got %v, %v; want %v, %v", tc.name, got, reason, tc.want, tc.reason)
		}
	}
}

func TestViewsRejectOtherMessages(t *testing.T) {
	views := map[Type]func([]byte) drop.Reason{
		TypeInitiation:  func(b []byte) drop.Reason { _, r := AsInitiation(b); return r },
		TypeResponse:    func(b []byte) drop.Reason { _, r := AsResponse(b); return r },
		TypeCookieReply: func(b []byte) drop.Reason { _, r := AsCookieReply(b); return r },
	}
	sizes := map[Type]int{TypeInitiation: 148, TypeResponse: 92, TypeCookieReply: 64, TypeData: 148}
	for is, size := range sizes {
		b := message(size, byte(is), 0, 0, 0)
		for as, view := range views {
			want := drop.RXBadType
			if is == as {
				want = drop.None
			}
			if got := view(b); got != want {
				t.Errorf("%v seen as %v: got %v, want %v", is, as, got, want)
			}
		}
		_, reason := SplitMACs(b)
		if hasMACs := is == TypeInitiation || is == TypeResponse; hasMACs != (reason == drop.None) {
			t.Errorf("MACs of %v: %v", is, reason)
		}
	}
	if _, reason := AsInitiation(nil); reason != drop.RXTooShort {
		t.Errorf("initiation of nothing: got %v, want %v", reason, drop.RXTooShort)
	}
	if _, reason := SplitMACs(message(100, 1, 0, 0, 0)); reason != drop.RXBadLength {
		t.Errorf("MACs of a bad initiation: got %v, want %v", reason, drop.RXBadLength)
	}
}

// span checks that field is b[from:to], by identity.
func span(t *testing.T, name string, b, field []byte, from, to int) {
	t.Helper()
	if len(field) != to-from || &field[0] != &b[from] {
		t.Errorf("%s: got %d bytes that begin with %#x, want %d bytes at offset %d", name, len(field), field[0], to-from, from)
	}
}

func TestFieldOffsetsMatchPaper(t *testing.T) {
	b := message(148, 1, 0, 0, 0, 0x11, 0x22, 0x33, 0x44)
	initiation, _ := AsInitiation(b)
	span(t, "initiation ephemeral", b, initiation.Ephemeral()[:], 8, 40)
	span(t, "initiation static", b, initiation.Static(), 40, 88)
	span(t, "initiation timestamp", b, initiation.Timestamp(), 88, 116)
	macs, _ := SplitMACs(b)
	span(t, "initiation covered by mac1", b, macs.Covered1, 0, 116)
	span(t, "initiation mac1", b, macs.MAC1[:], 116, 132)
	span(t, "initiation covered by mac2", b, macs.Covered2, 0, 132)
	span(t, "initiation mac2", b, macs.MAC2[:], 132, 148)
	if initiation.Sender() != 0x44332211 || SenderIndex(b) != 0x44332211 {
		t.Errorf("got initiation sender %#x, want 0x44332211", initiation.Sender())
	}

	b = message(92, 2, 0, 0, 0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88)
	response, _ := AsResponse(b)
	span(t, "response ephemeral", b, response.Ephemeral()[:], 12, 44)
	span(t, "response empty", b, response.Empty(), 44, 60)
	macs, _ = SplitMACs(b)
	span(t, "response mac1", b, macs.MAC1[:], 60, 76)
	span(t, "response mac2", b, macs.MAC2[:], 76, 92)
	if response.Sender() != 0x44332211 || response.Receiver() != 0x88776655 || ReceiverIndex(b) != 0x88776655 {
		t.Errorf("got response indices %#x, %#x, want 0x44332211, 0x88776655", response.Sender(), response.Receiver())
	}

	b = message(64, 3, 0, 0, 0, 0x11, 0x22, 0x33, 0x44)
	cookie, _ := AsCookieReply(b)
	span(t, "cookie nonce", b, cookie.Nonce()[:], 8, 32)
	span(t, "cookie", b, cookie.Cookie(), 32, 64)
	if cookie.Receiver() != 0x44332211 || ReceiverIndex(b) != 0x44332211 {
		t.Errorf("cookie reply receiver %#x", cookie.Receiver())
	}

	b = message(48, 4, 0, 0, 0, 0x11, 0x22, 0x33, 0x44, 1, 2, 3, 4, 5, 6, 7, 8)
	span(t, "ciphertext", b, Ciphertext(b), 16, 48)
	if DataReceiver(b) != 0x44332211 || ReceiverIndex(b) != 0x44332211 || Counter(b) != 0x0807060504030201 {
		t.Errorf("data receiver %#x, counter %#x", DataReceiver(b), Counter(b))
	}
}

func TestHeadersRoundTrip(t *testing.T) {
	initiation, response, cookie := Initiation{3: 9}, Response{3: 9}, CookieReply{3: 9}
	initiation.SetHeader(0x44332211)
	response.SetHeader(0x44332211, 0x88776655)
	cookie.SetHeader(0x44332211)
	data := make([]byte, DataHeaderLen)
	PutDataHeader(data, 0x44332211, 0x0807060504030201)
	for _, tc := range []struct {
		name      string
		got, want []byte
	}{
		{"initiation", initiation[:8], []byte{1, 0, 0, 0, 0x11, 0x22, 0x33, 0x44}},
		{"response", response[:12], []byte{2, 0, 0, 0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88}},
		{"cookie reply", cookie[:8], []byte{3, 0, 0, 0, 0x11, 0x22, 0x33, 0x44}},
		{"data", data, []byte{4, 0, 0, 0, 0x11, 0x22, 0x33, 0x44, 1, 2, 3, 4, 5, 6, 7, 8}},
	} {
		if !bytes.Equal(tc.got, tc.want) {
			t.Errorf("%s: got %x, want %x", tc.name, tc.got, tc.want)
		}
	}
}

func TestPaddingNeverExceedsTheMTU(t *testing.T) {
	for _, tc := range []struct{ n, mtu, want int }{
		{0, 1420, 0},
		{1, 1420, 16},
		{16, 1420, 16},
		{17, 1420, 32},
		{1408, 1420, 1408},
		{1409, 1420, 1420}, // the next multiple is 1424
		{1420, 1420, 1420},
		{1421, 1420, 1421}, // a packet beyond the MTU goes as it is
		{1440, 1420, 1440},
		{1409, 0, 1424},
		{1409, -1, 1424},
		{5, 7, 7},
		{65535, 65535, 65535},
	} {
		if got := PaddedLen(tc.n, tc.mtu); got != tc.want {
			t.Errorf("PaddedLen(%d, %d) = %d, want %d", tc.n, tc.mtu, got, tc.want)
		}
	}
}

func TestPaddingAgreesWithItsDefinition(t *testing.T) {
	for mtu := range 100 {
		for n := range 200 {
			want := n
			for want%16 != 0 && (mtu == 0 || want < mtu) {
				want++
			}
			if got := PaddedLen(n, mtu); got != want {
				t.Fatalf("PaddedLen(%d, %d) = %d, want %d", n, mtu, got, want)
			}
		}
	}
}

func TestNothingAllocates(t *testing.T) {
	data, initiation := message(64, 4, 0, 0, 0), message(148, 1, 0, 0, 0)
	var sum uint64
	allocs := testing.AllocsPerRun(100, func() {
		for _, b := range [][]byte{data, initiation, data[:5]} {
			typ, reason := Classify(b)
			sum += uint64(typ) + uint64(reason)
		}
		PutDataHeader(data, uint32(sum), sum)
		sum += uint64(DataReceiver(data)) + uint64(ReceiverIndex(data)) + Counter(data) + uint64(len(Ciphertext(data)))
		m, _ := AsInitiation(initiation)
		macs, _ := SplitMACs(initiation)
		sum += uint64(m.Sender()) + uint64(m.Static()[0]) + uint64(macs.MAC2[0]) + uint64(PaddedLen(int(sum&1023), 1420))
	})
	if allocs != 0 {
		t.Errorf("got %v allocations, want 0", allocs)
	}
}

func BenchmarkClassifyData(b *testing.B) {
	msg := message(1452, 4, 0, 0, 0)
	var sum Type
	for b.Loop() {
		t, _ := Classify(msg)
		sum += t
	}
}
