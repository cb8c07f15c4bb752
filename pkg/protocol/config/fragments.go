// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"strings"
)

// OuterFragments says whether outer packets that exceed the path MTU may leave, and be forwarded, in fragments. Otherwise they have
// Don't Fragment set, and inner packets that do not fit are fragmented or answered with ICMP errors.
type OuterFragments bool

// ParseOuterFragments returns the value for "on" or "off", in any case.
func ParseOuterFragments(s string) (OuterFragments, error) {
	switch {
	case strings.EqualFold(s, "on"):
		return true, nil
	case strings.EqualFold(s, "off"):
		return false, nil
	}
	return false, errors.New("want on or off")
}

// String returns "on" or "off".
func (f OuterFragments) String() string {
	if f {
		return "on"
	}
	return "off"
}

// MarshalText implements encoding.TextMarshaler with String.
func (f OuterFragments) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler with ParseOuterFragments.
func (f *OuterFragments) UnmarshalText(text []byte) (err error) {
	*f, err = ParseOuterFragments(string(text))
	return err
}
