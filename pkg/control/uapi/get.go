// SPDX-License-Identifier: Apache-2.0

package uapi

import (
	"bufio"
	"io"
	"net/netip"
	"strconv"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// WriteGet writes the answer to a get operation, without the errno line and the empty line that end it. Like
// wireguard-go it leaves out keys without a value. The text holds the keys in the clear.
func WriteGet(w io.Writer, st config.Status) error {
	b := bufio.NewWriter(w)
	if !st.PrivateKey.IsZero() {
		writeLine(b, "private_key", st.PrivateKey.Hex())
	}
	if st.ListenPort != 0 {
		writeNumber(b, "listen_port", uint64(st.ListenPort))
	}
	if st.FwMark != 0 {
		writeNumber(b, "fwmark", uint64(st.FwMark))
	}
	for i := range st.Peers {
		writeGetPeer(b, &st.Peers[i])
	}
	return b.Flush()
}

func writeGetPeer(b *bufio.Writer, p *config.PeerStatus) {
	var sec, nsec int64
	if t := p.LastHandshake; !t.IsZero() {
		sec, nsec = t.Unix(), int64(t.Nanosecond())
	}
	writeLine(b, "public_key", p.PublicKey.Hex())
	writeLine(b, "preshared_key", p.PresharedKey.Hex())
	writeLine(b, "protocol_version", "1")
	if p.Endpoint.AddrPort.IsValid() {
		writeLine(b, "endpoint", formatEndpoint(p.Endpoint))
	}
	writeLine(b, "last_handshake_time_sec", strconv.FormatInt(sec, 10))
	writeLine(b, "last_handshake_time_nsec", strconv.FormatInt(nsec, 10))
	writeNumber(b, "tx_bytes", p.TxBytes)
	writeNumber(b, "rx_bytes", p.RxBytes)
	writeNumber(b, "persistent_keepalive_interval", uint64(p.Keepalive))
	for _, prefix := range p.AllowedIPs {
		writeLine(b, "allowed_ip", prefix.String())
	}
}

// parseGet reads the answer to a get operation up to its empty line. The error is the daemon's *Error when its errno
// is not 0. Unknown keys are skipped: other daemons add keys.
func parseGet(lines *lineReader) (config.Status, error) {
	var p getParser
	if err := readAnswer(lines, p.set); err != nil {
		return config.Status{}, err
	}
	p.endPeer()
	if !p.st.PrivateKey.IsZero() {
		p.st.PublicKey = p.st.PrivateKey.Public()
	}
	return p.st, nil
}

// getParser collects the answer to one get operation.
type getParser struct {
	st        config.Status
	sec, nsec uint64 // of the last peer's handshake
}

func (p *getParser) set(key, value string) error {
	switch {
	case key == "public_key":
		return p.addPeer(value)
	case len(p.st.Peers) > 0:
		return p.setPeer(&p.st.Peers[len(p.st.Peers)-1], key, value)
	}
	return p.setDevice(key, value)
}

func (p *getParser) addPeer(value string) error {
	p.endPeer()
	key, err := noise.ParseHex[noise.PublicKey](value)
	if err != nil {
		return wantHexKey(value)
	}
	p.st.Peers = append(p.st.Peers, config.PeerStatus{PublicKey: key})
	return nil
}

// endPeer combines the seconds and nanoseconds of a handshake's time, which are two lines.
func (p *getParser) endPeer() {
	if n := len(p.st.Peers); n > 0 && (p.sec != 0 || p.nsec != 0) {
		p.st.Peers[n-1].LastHandshake = time.Unix(int64(p.sec), int64(p.nsec))
	}
	p.sec, p.nsec = 0, 0
}

func (p *getParser) setDevice(key, value string) (err error) {
	switch key {
	case "private_key":
		err = store(&p.st.PrivateKey, value, hexKey[noise.PrivateKey])
	case "listen_port":
		err = store(&p.st.ListenPort, value, number[uint16])
	case "fwmark":
		err = store(&p.st.FwMark, value, number[uint32])
	}
	return err
}

func (p *getParser) setPeer(peer *config.PeerStatus, key, value string) (err error) {
	switch key {
	case "preshared_key":
		err = store(&peer.PresharedKey, value, hexKey[noise.PresharedKey])
	case "endpoint":
		err = store(&peer.Endpoint, value, parseEndpoint)
	case "last_handshake_time_sec":
		err = store(&p.sec, value, below(maxSeconds))
	case "last_handshake_time_nsec":
		err = store(&p.nsec, value, below(uint64(time.Second)))
	case "tx_bytes":
		err = store(&peer.TxBytes, value, number[uint64])
	case "rx_bytes":
		err = store(&peer.RxBytes, value, number[uint64])
	case "persistent_keepalive_interval":
		err = store(&peer.Keepalive, value, number[uint16])
	case "allowed_ip":
		var prefix netip.Prefix
		if prefix, err = netip.ParsePrefix(value); err == nil {
			peer.AllowedIPs = append(peer.AllowedIPs, prefix.Masked())
		}
	}
	return err
}

// maxSeconds is some 35,000 years, which time.Time can represent.
const maxSeconds = 1 << 40

// below returns a parser for numbers below a limit.
func below(limit uint64) func(string) (*uint64, error) {
	return func(value string) (*uint64, error) {
		n, err := number[uint64](value)
		if err == nil && *n >= limit {
			return nil, invalidError("want less than %d, got %q", limit, value)
		}
		return n, err
	}
}

// store puts a parsed value into a field of Status, whose fields are not pointers.
func store[T any](field *T, value string, parse func(string) (*T, error)) error {
	v, err := parse(value)
	if err == nil {
		*field = *v
	}
	return err
}
