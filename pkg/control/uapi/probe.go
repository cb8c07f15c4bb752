// SPDX-License-Identifier: Apache-2.0

package uapi

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// probe implements the probe operation. Its answer lacks peers that do not exist.
func (s *Server) probe(lines *lineReader) ([]byte, error) {
	if s.Probe == nil {
		return nil, refuse(lines, &Error{Errno: unix.EOPNOTSUPP, Err: errors.New("this device probes no peers")})
	}
	keys, err := readKeys(lines)
	if err != nil {
		return nil, err
	}
	reports := make(map[noise.PublicKey]config.PeerProbe, len(keys))
	for key := range keys {
		if report, ok := s.Probe(key); ok {
			reports[key] = report
		}
	}
	return encodeJSON(reports)
}

// ProbePeers sends peers a message that they answer, and returns the present state of these tests without waiting: a later call reports the
// answers. Peers that do not exist are left out. Only ropewalk's daemon has this operation: others close the connection.
func (c *Client) ProbePeers(peers ...noise.PublicKey) (reports map[noise.PublicKey]config.PeerProbe, err error) {
	if err := c.requestJSON(&reports, opProbe, peers...); err != nil {
		return nil, fmt.Errorf("probing peers of interface %s: %w", c.name, err)
	}
	return reports, nil
}

// Probe is ProbePeers for one peer. If it does not exist, the error is syscall.ENOENT.
func (c *Client) Probe(key noise.PublicKey) (config.PeerProbe, error) {
	reports, err := c.ProbePeers(key)
	report, ok := reports[key]
	if err == nil && !ok {
		err = fmt.Errorf("probing peer %s of interface %s: no such peer: %w", key, c.name, unix.ENOENT)
	}
	return report, err
}
