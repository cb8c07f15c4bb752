// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
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

// PeerName has the names of a peer that WireGuard's status does not have.
type PeerName struct {
	Name string `json:"name,omitempty"` // for people
}

// NameReport has the peers with names, by public key in base64. It is the member "names" of the stats operation's JSON.
type NameReport map[string]PeerName

// AddNames stores a report in st.
func (st *Status) AddNames(r NameReport) {
	for i := range st.Peers {
		p := &st.Peers[i]
		p.Name = r[p.PublicKey.Base64()].Name
	}
}
