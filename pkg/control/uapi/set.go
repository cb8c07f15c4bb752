// SPDX-License-Identifier: Apache-2.0

package uapi

import (
	"bufio"
	"errors"
	"io"
	"math/bits"
	"net/netip"
	"strconv"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// ParseSet reads the body of a set operation, the lines after "set=1", up to its empty line or the
// end of r. It may read r beyond that. Each error in the text is an *Error with the number of the
// line, and the Device is empty. The first line of the body is 1. IPv6 zones may be names, which
// are looked up among this host's interfaces.
func ParseSet(r io.Reader) (config.Device, error) {
	lines := newLineReader(r, maxRequest)
	dev, err := parseSet(lines)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return config.Device{}, &Error{Errno: errnoOf(invalidError("")), Line: lines.line, Err: err}
	}
	return dev, err
}

// parseSet treats io.EOF between lines as the end of the operation. lines.ended distinguishes it from the empty line.
func parseSet(lines *lineReader) (config.Device, error) {
	var p setParser
	for {
		key, value, ok, err := lines.pair()
		if errors.Is(err, io.EOF) || (err == nil && !ok) {
			return p.dev, nil
		}
		if err == nil {
			err = p.set(key, value)
		}
		if err != nil {
			return config.Device{}, withPosition(err, lines.line, key)
		}
	}
}

// withPosition adds the line and the key to an *Error that has none.
func withPosition(err error, line int, key string) error {
	if e, ok := errors.AsType[*Error](err); ok && e.Line == 0 {
		e.Line = line
		if len(key) <= 32 { // a longer one is not a key, and might be a misplaced secret
			e.Key = key
		}
	}
	return err
}

// setParser collects one set operation.
type setParser struct {
	dev config.Device
}

func (p *setParser) set(key, value string) error {
	if key == "public_key" {
		return p.addPeer(value)
	}
	if n := len(p.dev.Peers); n > 0 {
		return setPeer(&p.dev.Peers[n-1], key, value)
	}
	return p.setDevice(key, value)
}

func (p *setParser) addPeer(value string) error {
	key, err := noise.ParseHex[noise.PublicKey](value)
	if err != nil {
		return wantHexKey(value)
	}
	p.dev.Peers = append(p.dev.Peers, config.Peer{PublicKey: key})
	return nil
}

func (p *setParser) setDevice(key, value string) (err error) {
	switch key {
	case "private_key":
		p.dev.PrivateKey, err = hexKey[noise.PrivateKey](value)
	case "listen_port":
		p.dev.ListenPort, err = number[uint16](value)
	case "fwmark":
		p.dev.FwMark, err = number[uint32](value)
	case "replace_peers":
		p.dev.ReplacePeers, err = flag(value)
	default:
		return p.setOwn(key, value)
	}
	return err
}

// setOwn sets a setting that only ropewalk has.
func (p *setParser) setOwn(key, value string) error {
	for _, s := range config.Table() {
		if s.Key() == key {
			if err := s.Set(&p.dev.Settings, value); err != nil {
				return invalidError("%w", err)
			}
			return nil
		}
	}
	return invalidError("unknown device key")
}

func setPeer(p *config.Peer, key, value string) (err error) {
	switch key {
	case keyName:
		p.Name, err = parsed(value, func(s string) (string, error) { return s, config.CheckName(s) })
	case "remove":
		p.Remove, err = flag(value)
	case "update_only":
		p.UpdateOnly, err = flag(value)
	case "preshared_key":
		p.PresharedKey, err = hexKey[noise.PresharedKey](value)
	case "endpoint":
		p.EndpointName = ""
		p.Endpoint, err = parseEndpoint(value)
	case keyEndpointName:
		err = setEndpointName(p, value)
	case keyPostQuantum:
		err = setPostQuantum(p, value)
	case "persistent_keepalive_interval":
		p.Keepalive, err = number[uint16](value)
	case "replace_allowed_ips":
		// The protocol applies lines in order: entries added before this line are removed too.
		p.AllowedIPs = nil
		p.ReplaceAllowedIPs, err = flag(value)
	case "allowed_ip":
		err = addAllowedIP(p, value)
	case "protocol_version":
		if value != "1" {
			err = invalidError(`want "1"`)
		}
	default:
		return invalidError("unknown peer key")
	}
	return err
}

func setPostQuantum(p *config.Peer, value string) (err error) {
	if strings.EqualFold(value, config.PostQuantumForget) {
		p.ForgetPostQuantum = true
		return nil
	}
	p.PostQuantum, err = parsed(value, config.ParsePostQuantum)
	return err
}

func setEndpointName(p *config.Peer, value string) error {
	if p.Endpoint == nil {
		return invalidError("want endpoint before it")
	}
	if err := config.CheckEndpointName(value); err != nil {
		return invalidError("%w", err)
	}
	p.EndpointName = value
	return nil
}

func addAllowedIP(p *config.Peer, value string) error {
	value, remove := strings.CutPrefix(value, "-")
	prefix, err := netip.ParsePrefix(value)
	if err != nil {
		return invalidError("want an address and prefix length, got %d other bytes", len(value))
	}
	p.AllowedIPs = append(p.AllowedIPs, config.AllowedIP{Prefix: prefix.Masked(), Remove: remove})
	return nil
}

func hexKey[K noise.Key](value string) (*K, error) {
	key, err := noise.ParseHex[K](value)
	if err != nil {
		return nil, wantHexKey(value)
	}
	return &key, nil
}

func wantHexKey(value string) error {
	return invalidError("want 64 hexadecimal digits, got %d other bytes", len(value))
}

// number parses a decimal number that fits N.
func number[N uint16 | uint32 | uint64](value string) (*N, error) {
	largest := uint64(^N(0))
	v, err := strconv.ParseUint(value, 10, bits.Len64(largest))
	if err != nil {
		return nil, invalidError("want 0-%d, got %d other bytes", largest, len(value))
	}
	n := N(v)
	return &n, nil
}

// parsed calls a parser and converts its error into an *Error.
func parsed[T any](value string, parse func(string) (T, error)) (*T, error) {
	v, err := parse(value)
	if err != nil {
		return nil, invalidError("%w", err)
	}
	return &v, nil
}

func flag(value string) (bool, error) {
	if value != "true" {
		return false, invalidError(`want "true", got %d other bytes`, len(value))
	}
	return true, nil
}

// WriteSet writes the body of the set operation for the change dev, without the empty line that ends it. The text holds
// the keys in the clear.
func WriteSet(w io.Writer, dev config.Device) error {
	b := bufio.NewWriter(w)
	if dev.PrivateKey != nil {
		writeLine(b, "private_key", dev.PrivateKey.Hex())
	}
	if dev.ListenPort != nil {
		writeNumber(b, "listen_port", uint64(*dev.ListenPort))
	}
	if dev.FwMark != nil {
		writeNumber(b, "fwmark", uint64(*dev.FwMark))
	}
	for _, s := range config.Table() {
		if text, given := s.Text(&dev.Settings); given {
			writeLine(b, s.Key(), text)
		}
	}
	writeFlag(b, "replace_peers", dev.ReplacePeers)
	for i := range dev.Peers {
		writeSetPeer(b, &dev.Peers[i])
	}
	return b.Flush()
}

func writeSetPeer(b *bufio.Writer, p *config.Peer) {
	writeLine(b, "public_key", p.PublicKey.Hex())
	writeFlag(b, "remove", p.Remove)
	writeFlag(b, "update_only", p.UpdateOnly)
	if p.Name != nil {
		writeLine(b, keyName, *p.Name)
	}
	if p.PresharedKey != nil {
		writeLine(b, "preshared_key", p.PresharedKey.Hex())
	}
	if p.Endpoint != nil {
		writeLine(b, "endpoint", formatEndpoint(*p.Endpoint))
		if p.EndpointName != "" {
			writeLine(b, keyEndpointName, p.EndpointName)
		}
	}
	if p.Keepalive != nil {
		writeNumber(b, "persistent_keepalive_interval", uint64(*p.Keepalive))
	}
	if p.PostQuantum != nil {
		writeLine(b, keyPostQuantum, p.PostQuantum.String())
	}
	if p.ForgetPostQuantum {
		writeLine(b, keyPostQuantum, config.PostQuantumForget)
	}
	writeFlag(b, "replace_allowed_ips", p.ReplaceAllowedIPs)
	for _, a := range p.AllowedIPs {
		sign := ""
		if a.Remove {
			sign = "-"
		}
		writeLine(b, "allowed_ip", sign+a.Prefix.String())
	}
}

// The write functions leave errors to the Writer, which keeps the first for Flush.

func writeLine(b *bufio.Writer, key, value string) {
	b.WriteString(key)
	b.WriteByte('=')
	b.WriteString(value)
	b.WriteByte('\n')
}

func writeNumber(b *bufio.Writer, key string, n uint64) {
	writeLine(b, key, strconv.FormatUint(n, 10))
}

func writeFlag(b *bufio.Writer, key string, on bool) {
	if on {
		writeLine(b, key, "true")
	}
}
