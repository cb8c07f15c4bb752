// SPDX-License-Identifier: Apache-2.0

package uapi

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

func TestWriteGetOmitsUnsetKeys(t *testing.T) {
	var b bytes.Buffer
	err := WriteGet(&b, config.Status{Peers: []config.PeerStatus{{PublicKey: mustHex[noise.PublicKey](t, hexA)}}})
	want := "public_key=" + hexA + "\npreshared_key=" + hex0 + "\nprotocol_version=1\nlast_handshake_time_sec=0\n" +
		"last_handshake_time_nsec=0\ntx_bytes=0\nrx_bytes=0\npersistent_keepalive_interval=0\n"
	if diff := cmp.Diff(want, b.String()); diff != "" || err != nil {
		t.Error(err, diff)
	}
}

func TestGetAnswerHasWireGuardKeysOnly(t *testing.T) {
	var with, without bytes.Buffer
	st := config.Status{ListenPort: 5, Peers: []config.PeerStatus{{PublicKey: mustHex[noise.PublicKey](t, hexA)}}}
	if err := WriteGet(&without, st); err != nil {
		t.Fatal(err)
	}
	st.Spread, st.SpreadPorts, st.Lanes = config.SpreadOn, spread.DefaultPorts, 4
	st.Peers[0].Spread = config.PeerSpread{Active: true, Ports: 16}
	if err := WriteGet(&with, st); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(without.String(), with.String()); diff != "" {
		t.Error(diff)
	}
}

func parseGetString(s string) (config.Status, error) {
	return parseGet(newLineReader(strings.NewReader(s), maxReply))
}

// TestRequestsAreBounded: a client that never ends its request must not fill the memory.
func TestRequestsAreBounded(t *testing.T) {
	const lines = 5
	endless := strings.NewReader(strings.Repeat("fwmark=1\n", 1000))
	l := newLineReader(endless, lines*int64(len("fwmark=1\n")))
	for range lines {
		if _, err := l.next(); err != nil {
			t.Fatal(err)
		}
	}
	var e *Error
	if _, err := l.next(); !errors.As(err, &e) || e.Errno != syscall.E2BIG || !e.fatal {
		t.Errorf("got error %v, want one that ends the connection", err)
	}
}

func TestClientSkipsKeysOfOtherDaemons(t *testing.T) {
	st, err := parseGetString("own_public_key=x\nlisten_port=5\npublic_key=" + hexA + "\ndaita_enabled=1\nrx_bytes=7\nerrno=0\n\n")
	if err != nil || st.ListenPort != 5 || st.Peers[0].RxBytes != 7 {
		t.Error(st, err)
	}
}

func TestClientCombinesHandshakeSecondsAndNanoseconds(t *testing.T) {
	st, err := parseGetString("public_key=" + hexA + "\nlast_handshake_time_sec=5\nlast_handshake_time_nsec=6\npublic_key=" + hexB + "\nerrno=0\n\n")
	if err != nil || !st.Peers[0].LastHandshake.Equal(time.Unix(5, 6)) || !st.Peers[1].LastHandshake.IsZero() {
		t.Error(st.Peers, err)
	}
}

func TestClientRejectsTruncatedOrMalformedAnswers(t *testing.T) {
	for in, want := range map[string]error{
		"":                                  io.ErrUnexpectedEOF,
		"listen_port=5\n":                   io.ErrUnexpectedEOF,
		"listen_port=5\nerrno=0\n":          io.ErrUnexpectedEOF,
		"listen_port=5\n\n":                 syscall.EPROTO,
		"errno=-98\n\n":                     syscall.EADDRINUSE,
		"errno=98\n\n":                      syscall.EADDRINUSE,
		"errno=x\n\n":                       syscall.EPROTO,
		"listen_port=x\nerrno=0\n\n":        syscall.EINVAL,
		"private_key=ab\nerrno=0\n\n":       syscall.EINVAL,
		"nothing\nerrno=0\n\n":              syscall.EPROTO,
		"a=" + strings.Repeat("x", maxLine): syscall.E2BIG,
	} {
		if _, err := parseGetString(in); !errors.Is(err, want) {
			t.Errorf("%.30q: error %v, want %v", in, err, want)
		}
	}
}

func FuzzParseGet(f *testing.F) {
	f.Add("private_key=" + hexA + "\nlisten_port=1\nfwmark=2\npublic_key=" + hexB + "\nendpoint=[fe80::1%3]:7\n" +
		"last_handshake_time_sec=5\nlast_handshake_time_nsec=6\nallowed_ip=1.2.3.4/5\ntx_bytes=18446744073709551615\nerrno=0\n\n")
	f.Add("errno=-22\n\n")
	f.Add("public_key=" + hexA + "\nlast_handshake_time_sec=10000000000000000000\nerrno=0\n\n")
	f.Fuzz(func(t *testing.T, in string) {
		st, err := parseGetString(in)
		if err != nil {
			return
		}
		var b bytes.Buffer
		if err := WriteGet(&b, st); err != nil {
			t.Fatal(err)
		}
		again, err := parseGetString(b.String() + "errno=0\n\n")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(st.Peers, again.Peers, exact); diff != "" {
			t.Error(diff)
		}
	})
}
