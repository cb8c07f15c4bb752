// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"encoding/hex"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	wg "golang.zx2c4.com/wireguard/device"
	wgtun "golang.zx2c4.com/wireguard/tun"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
)

// configLines turns arbitrary bytes into lines of a set operation: known keys with values that are often valid.
func configLines(b []byte) string {
	s := &script{rest: b}
	var text strings.Builder
	for len(s.rest) > 0 {
		line := configKeys[s.byte()%len(configKeys)]
		text.WriteString(line(s) + "\n")
	}
	return text.String()
}

var configKeys = []func(*script) string{
	func(s *script) string { return "public_key=" + s.publicKey() + s.flags() },
	func(s *script) string { return "public_key=" + s.publicKey() + s.flags() },
	func(s *script) string { return "private_key=" + s.key() },
	func(s *script) string { return "preshared_key=" + s.key() },
	func(s *script) string { return "listen_port=" + s.number() },
	func(s *script) string { return "fwmark=" + s.number() },
	func(s *script) string { return "persistent_keepalive_interval=" + s.number() },
	func(s *script) string { return "replace_peers=" + s.boolean() },
	func(s *script) string { return "protocol_version=" + []string{"1", "1", "2", ""}[s.byte()%4] },
	func(s *script) string { return "endpoint=" + s.endpoint() },
	func(s *script) string { return "allowed_ip=" + s.prefix() },
	func(s *script) string { return "allowed_ip=" + s.prefix() },
}

// key returns one of a few keys, so that lines often concern the same peer.
func (s *script) key() string {
	n := s.byte()
	switch n {
	case 255:
		return strings.Repeat("0", 64)
	case 254:
		return "00"
	case 253:
		return strings.Repeat("g", 64)
	case 252:
		return strings.Repeat("AB", 32)
	}
	return hex.EncodeToString(append(make([]byte, 31), byte(n%4+1)))
}

// publicKey returns a key that is not zero: wireguard-go without a private key has that one as its own.
func (s *script) publicKey() string {
	if len(s.rest) > 0 && s.rest[0] == 251 {
		return ownKey(s.byte())
	}
	if key := s.key(); strings.Trim(key, "0") != "" || len(key) != 64 {
		return key
	}
	return strings.Repeat("1", 64)
}

// ownKey returns the public key of one of the private keys that key returns: an interface is no peer of itself.
func ownKey(n int) string {
	private := noise.PrivateKey{31: byte(n%4 + 1)}
	return private.Public().Hex()
}

// flags returns lines that follow a peer's key. Later in a section wireguard-go applies them to what came before, and the kernel's
// netlink interface and ropewalk to the whole section.
func (s *script) flags() string {
	var lines string
	for _, key := range []string{"remove", "update_only", "replace_allowed_ips"} {
		if s.byte()%4 == 0 {
			lines += "\n" + key + "=" + s.boolean()
		}
	}
	return lines
}

func (s *script) number() string {
	n := s.byte()
	switch {
	case n < 200:
		return fmt.Sprint(n)
	case n < 240:
		return fmt.Sprint(s.word())
	}
	return []string{"", "65536", "-1", "4294967295", "4294967296", "0x10", "+1", " 1", "1 ", "off", "010", "1e3"}[n%12]
}

func (s *script) boolean() string {
	return []string{"true", "true", "true", "false", "", "1"}[s.byte()%6]
}

func (s *script) endpoint() string {
	n := s.byte()
	if n < 128 {
		return fmt.Sprintf("192.0.2.%d:%d", n, s.word())
	}
	return []string{
		"[2001:db8::1]:51820", "2001:db8::1:51820", "192.0.2.1", "192.0.2.1:", ":1", "192.0.2.1:65536",
		"192.0.2.1:-1", "", "[2001:db8::1]", "1.2.3.4.5:1", "192.0.2.01:1", "[192.0.2.1]:1",
	}[n%12]
}

func (s *script) prefix() string {
	n := s.byte()
	if n < 128 {
		return fmt.Sprintf("10.%d.%d.%d/%d", n%3, s.byte()%3, s.byte()%3, s.byte()%36)
	}
	if n < 200 {
		return fmt.Sprintf("fd00:%x::%x/%d", n%3, s.byte()%3, s.byte()%132)
	}
	return []string{
		"-10.0.0.0/8", "10.0.0.0", "10.0.0.0/", "/8", "", "::/0", "0.0.0.0/0", "10.0.0.0/08", "10.0.0.0/+8", "::ffff:10.0.0.0/104", "10.0.0/8", "fe80::1%lo/64",
		"+10.0.0.0/8", "10.0.0.0/8/8",
	}[n%14]
}

// FuzzSameConfiguration gives the same set operation to ropewalk and to wireguard-go. Both must refuse it, or both accept it and
// then report the same configuration.
func FuzzSameConfiguration(f *testing.F) {
	for i := range configKeys {
		f.Add([]byte{2, 1, 0, 2, 1, 1, 1, byte(i), 3, 0, 1, 10, 1, 1, 1, 24, byte(i), 130, 2, 24, 1})
	}
	f.Add([]byte{0, 251, 1, 1, 1, 10, 1, 1, 1, 24, 2, 3})
	f.Add([]byte{2, 3, 0, 251, 1, 1, 1, 10, 1, 1, 1, 24, 0, 251, 1, 1, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 200 {
			return
		}
		text := configLines(b)
		ours, ourErr := setRopewalk(t, text)
		theirs, theirErr := setWireGuardGo(t, text)
		switch {
		case (ourErr == nil) != (theirErr == nil):
			t.Errorf("ropewalk: %v\nwireguard-go: %v\n%s", ourErr, theirErr, text)
		case ourErr == nil && ours != theirs:
			t.Errorf("ropewalk:\n%s\nwireguard-go:\n%s\nafter\n%s", ours, theirs, text)
		}
	})
}

func setRopewalk(t *testing.T, text string) (string, error) {
	t.Helper()
	d := device.New(device.Config{
		TUN: &ropewalkTUN{net: newMemoryNet(1), events: make(chan tun.Event, 1)}, Log: slog.New(slog.DiscardHandler),
		OpenPort: func(device.PortOptions) (underlay.Port, error) { return nil, errNotUp },
	})
	defer d.Close()
	c, err := uapi.ParseSet(strings.NewReader(text + "\n"))
	if err == nil {
		err = d.Configure(c)
	}
	if err != nil {
		return "", err
	}
	var b strings.Builder
	if err := uapi.WriteGet(&b, d.Status()); err != nil {
		t.Fatal(err)
	}
	return normalized(b.String()), nil
}

var errNotUp = fmt.Errorf("the interface is not up")

func setWireGuardGo(t *testing.T, text string) (string, error) {
	t.Helper()
	at := &wireguardGoTUN{net: newMemoryNet(1), events: make(chan wgtun.Event, 1)}
	d := wg.NewDevice(at, &bind{net: at.net}, wg.NewLogger(wg.LogLevelSilent, ""))
	defer d.Close()
	if err := d.IpcSet(text); err != nil {
		return "", err
	}
	got, err := d.IpcGet()
	if err != nil {
		t.Fatal(err)
	}
	return normalized(got), nil
}

// normalized returns the lines of a configuration that both implementations report, sorted within the device and each peer.
func normalized(text string) string {
	var sections []string
	var lines []string
	end := func() {
		slices.Sort(lines)
		sections = append(sections, strings.Join(lines, "\n"))
		lines = nil
	}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch key, value, _ := strings.Cut(line, "="); key {
		case "public_key":
			end()
			lines = append(lines, " "+line) // first
		case "private_key", "preshared_key":
			if strings.Trim(value, "0") != "" {
				lines = append(lines, line)
			}
		case "listen_port", "fwmark", "persistent_keepalive_interval":
			if value != "0" {
				lines = append(lines, line)
			}
		case "endpoint", "allowed_ip":
			lines = append(lines, line)
		}
	}
	end()
	slices.Sort(sections[1:])
	return strings.Join(sections, "\n")
}
