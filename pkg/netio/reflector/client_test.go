// SPDX-License-Identifier: Apache-2.0

package reflector_test

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/netio/reflector"
	"github.com/ropewalk/ropewalk/test/expect"
	"github.com/ropewalk/ropewalk/test/namespace"
)

// client asks from an address, and returns the channel of answers by a device.
func client(t *testing.T, from string, device func() int) (*reflector.Client, <-chan netip.Addr) {
	t.Helper()
	c, err := reflector.NewClient(netip.MustParseAddr(from), port)
	expect.NoError(t, err)
	answers, served := make(chan netip.Addr, 100), make(chan struct{})
	go func() {
		defer close(served)
		c.Serve(device, func(peer netip.Addr) { answers <- peer })
	}()
	t.Cleanup(func() {
		expect.NoError(t, c.Close())
		<-served
	})
	return c, answers
}

func expectAnswer(t *testing.T, answers <-chan netip.Addr, want netip.Addr) {
	t.Helper()
	select {
	case got := <-answers:
		if got != want {
			t.Errorf("got an answer of %s, want one of %s", got, want)
		}
	case <-time.After(time.Minute):
		t.Fatalf("no answer of %s", want)
	}
}

func TestClientTakesAnswersByDevice(t *testing.T) {
	listen(t, func(netip.Addr) bool { return true })
	for from, to := range map[string]string{"127.0.0.1": "127.8.8.8", "::1": "::1"} {
		peer := netip.MustParseAddr(to)
		device := 2
		c, answers := client(t, from, func() int {
			defer func() { device = 1 }() // from the second answer on
			return device
		})
		for range 2 {
			expect.NoError(t, c.Ask(peer))
		}
		expectAnswer(t, answers, peer)
		if len(answers) != 0 {
			t.Errorf("%s: accepted an answer by another device", to)
		}
	}
}

// TestClientRefusesForgedAnswers has a program instead of a reflector. Its last answer is authentic:
// those before it were refused once it is taken.
func TestClientRefusesForgedAnswers(t *testing.T) {
	namespace.Enter(t)
	expect.NoError(t, hostnet.SetLinkUp("lo", 1<<16))
	peer := netip.MustParseAddr("127.0.0.2")
	listen := func(at string) *net.UDPConn {
		conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(at)))
		expect.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		expect.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
		return conn
	}
	program, otherAddress, otherPort := listen("127.0.0.2:7007"), listen("127.0.0.3:7007"), listen("127.0.0.2:7008")
	c, answers := client(t, "127.0.0.1", func() int { return 1 })
	request := func() (nonce string, from *net.UDPAddr) {
		expect.NoError(t, c.Ask(peer))
		b := make([]byte, 100)
		n, from, err := program.ReadFromUDP(b)
		expect.NoError(t, err)
		nonce, ok := strings.CutPrefix(string(b[:n]), reflector.Request)
		if n != reflector.Size || !ok {
			t.Fatalf("got the request %q", b[:n])
		}
		return nonce, from
	}
	old, _ := request()
	nonce, from := request()
	if old == nonce {
		t.Error("two requests have one nonce")
	}
	for _, m := range []struct {
		conn *net.UDPConn
		text string
	}{
		{program, ""},
		{program, reflector.Answer + old},
		{program, reflector.Request + nonce},
		{program, reflector.Answer + nonce[1:]},
		{program, reflector.Answer + nonce + "x"},
		{otherAddress, reflector.Answer + nonce},
		{otherPort, reflector.Answer + nonce},
	} {
		_, err := m.conn.WriteTo([]byte(m.text), from)
		expect.NoError(t, err)
	}
	for range 2 { // the second one is a copy
		_, err := program.WriteTo([]byte(reflector.Answer+nonce), from)
		expect.NoError(t, err)
	}
	expectAnswer(t, answers, peer)
	nonce, _ = request()
	_, err := program.WriteTo([]byte(reflector.Answer+nonce), from)
	expect.NoError(t, err)
	expectAnswer(t, answers, peer)
	if len(answers) != 0 {
		t.Errorf("got %d more answers", len(answers))
	}
}
