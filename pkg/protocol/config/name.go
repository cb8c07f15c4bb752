// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxNameLen is the largest length of a peer's name, in bytes.
const MaxNameLen = 64

// CheckName returns an error for a text that cannot be the name of a peer. The empty name is none.
func CheckName(name string) error {
	switch {
	case len(name) > MaxNameLen:
		return fmt.Errorf("a name of %d bytes: at most %d are allowed", len(name), MaxNameLen)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }):
		return fmt.Errorf("name %q has characters that cannot be printed", name)
	case strings.TrimSpace(name) != name:
		return fmt.Errorf("name %q begins or ends with a space", name)
	}
	return nil
}

// maxHostName is the largest length of a name in the DNS (RFC 1035, section 2.3.4).
const maxHostName = 255

// CheckEndpointName returns an error for a text that is no name from which an endpoint can be resolved, host:port. The empty name is none.
func CheckEndpointName(name string) error {
	if name == "" {
		return nil
	}
	host, port, ok := strings.Cut(name, ":")
	n, err := strconv.ParseUint(port, 10, 16)
	switch {
	case !ok || host == "" || err != nil || n == 0:
		return fmt.Errorf("endpoint name %.80q: want name:port", name)
	case len(host) > maxHostName || strings.ContainsFunc(host, func(r rune) bool { return r == ' ' || !unicode.IsPrint(r) }):
		return fmt.Errorf("endpoint name %.80q: the host name is longer than 255 bytes, or has a space or unprintable character", name)
	}
	return nil
}

// PeerName has the names of a peer that WireGuard's status does not have.
type PeerName struct {
	Name         string `json:"name,omitempty"`          // for people
	EndpointName string `json:"endpoint_name,omitempty"` // from which the endpoint was resolved
}

// NameReport has the peers with names, by public key in base64. It is the member "names" of the stats operation's JSON.
type NameReport map[string]PeerName

// AddNames stores a report in st. It omits what CheckName and CheckEndpointName refuse: the report may be from another program, and names
// go to terminals and into configuration files.
func (st *Status) AddNames(r NameReport) {
	for i := range st.Peers {
		p := &st.Peers[i]
		names := r[p.PublicKey.Base64()]
		if CheckName(names.Name) == nil {
			p.Name = names.Name
		}
		if CheckEndpointName(names.EndpointName) == nil {
			p.EndpointName = names.EndpointName
		}
	}
}
