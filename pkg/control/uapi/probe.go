// SPDX-License-Identifier: Apache-2.0

package uapi

import (
	"encoding/json"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// probe implements the probe operation.
func (s *Server) probe(lines *lineReader) ([]byte, error) {
	if s.Probe == nil {
		return nil, refuse(lines, &Error{Errno: unix.EOPNOTSUPP, Err: errors.New("this device probes no peers")})
	}
	name, value, ok, err := lines.pair()
	if err != nil {
		return nil, err
	}
	key, keyErr := noise.ParseHex[noise.PublicKey](value)
	switch {
	case !ok:
		return nil, &Error{Errno: unix.EINVAL, Line: lines.line, Err: errors.New("want public_key=")}
	case name != "public_key" || keyErr != nil:
		return nil, refuse(lines, &Error{Errno: unix.EINVAL, Line: lines.line, Err: errors.New("want public_key= and a key in hexadecimal digits")})
	}
	if err := readEnd(lines); err != nil {
		return nil, err
	}
	report, ok := s.Probe(key)
	if !ok {
		return nil, &Error{Errno: unix.ENOENT, Line: lines.line, Err: errors.New("no such peer")}
	}
	b, err := json.Marshal(report)
	return append(b, '\n'), wrapHandler(err)
}

// Probe sends a peer a message that it answers, and returns the present state of the test without waiting: a later call reports the
// answer. Only ropewalk's daemon has this operation: others close the connection.
func (c *Client) Probe(key noise.PublicKey) (report config.PeerProbe, err error) {
	if err := c.requestJSON(opProbe+"\npublic_key="+key.Hex(), &report); err != nil {
		return config.PeerProbe{}, fmt.Errorf("probing a peer of interface %s: %w", c.name, err)
	}
	return report, nil
}
