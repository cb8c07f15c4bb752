// SPDX-License-Identifier: Apache-2.0

package reflector_test

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/netio/reflector"
	"github.com/ropewalk/ropewalk/test/expect"
	"github.com/ropewalk/ropewalk/test/namespace"
)

const port = 7007

// listen starts a reflector on the loopback device of a new namespace.
func listen(t *testing.T, admit func(netip.Addr) bool) *reflector.Reflector {
	t.Helper()
	namespace.Enter(t)
	expect.NoError(t, hostnet.SetLinkUp("lo", 1<<16))
	r, err := reflector.Listen(1, port) // the index of lo in each namespace
	expect.NoError(t, err)
	served := make(chan struct{})
	go func() {
		defer close(served)
		r.Serve(admit)
	}()
	t.Cleanup(func() {
		expect.NoError(t, r.Close())
		<-served
	})
	return r
}

// send sends messages from one socket, and returns the first answer, which must come from the address to which the messages were sent.
func send(t *testing.T, to string, messages ...string) string {
	t.Helper()
	c, err := net.Dial("udp", net.JoinHostPort(to, "7007"))
	expect.NoError(t, err)
	defer c.Close()
	for _, m := range messages {
		_, err := c.Write([]byte(m))
		expect.NoError(t, err)
	}
	answer := make([]byte, 100)
	expect.NoError(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
	n, err := c.Read(answer)
	expect.NoError(t, err)
	return string(answer[:n])
}

func TestReflectorAnswersFromAddressOfRequest(t *testing.T) {
	listen(t, func(netip.Addr) bool { return true })
	nonce := strings.Repeat("n", 16)
	for _, to := range []string{"127.0.0.1", "127.8.8.8", "::1"} {
		if got, want := send(t, to, reflector.Request+nonce), reflector.Answer+nonce; got != want {
			t.Errorf("%s: got %q, want %q", to, got, want)
		}
	}
}

func TestReflectorAnswersNothingElse(t *testing.T) {
	admitted := 0
	r := listen(t, func(from netip.Addr) bool {
		admitted++
		return admitted > 1 && from == netip.MustParseAddr("127.0.0.1")
	})
	nonce := strings.Repeat("n", 16)
	got := send(t, "127.0.0.1", "", "x", reflector.Answer+nonce, reflector.Request+nonce[1:], reflector.Request+nonce+"n", string(bytes.Repeat([]byte{0}, 1000)),
		reflector.Request+"refused by admit", reflector.Request+nonce)
	if got != reflector.Answer+nonce {
		t.Errorf("got %q", got)
	}
	if report := r.Report(); report.Answered != 1 || report.Ignored != 7 {
		t.Errorf("got %+v, want one answered and seven ignored", report)
	}
}

func TestPortOfAnotherProgramIsAnError(t *testing.T) {
	namespace.Enter(t)
	expect.NoError(t, hostnet.SetLinkUp("lo", 1<<16))
	c, err := net.ListenUDP("udp", &net.UDPAddr{Port: port})
	expect.NoError(t, err)
	if _, err := reflector.Listen(1, port); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("got error %v, want %v", err, syscall.EADDRINUSE)
	}
	expect.NoError(t, c.Close())
	for range 2 { // as an upgrade does
		r, err := reflector.Listen(1, port)
		expect.NoError(t, err)
		defer r.Close()
	}
}

func TestReflectorNeedsDevice(t *testing.T) {
	if _, err := reflector.Listen(0, port); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("got error %v without a device, want %v", err, syscall.ENODEV)
	}
}
