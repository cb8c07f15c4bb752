// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"strconv"
	"strings"
)

// Spray is the number of source ports over which one large flow is sprayed, from MinSpray to MaxSpray. The zero Spray is SprayOff.
type Spray uint8

// Values of Spray besides numbers.
const (
	SprayOff  Spray = 0
	SprayAuto Spray = 1 // a number that ropewalk chooses
)

// The bounds of a number of ports, and the number for SprayAuto.
const (
	MinSpray       = 2
	MaxSpray       = 16
	autoSprayPorts = 4
)

// ParseSpray returns the value for "off", "auto", in any case, or a number.
func ParseSpray(s string) (Spray, error) {
	switch n, err := strconv.ParseUint(s, 10, 8); {
	case strings.EqualFold(s, "off"):
		return SprayOff, nil
	case strings.EqualFold(s, "auto"):
		return SprayAuto, nil
	case err == nil && n >= MinSpray && n <= MaxSpray:
		return Spray(n), nil
	}
	return 0, errors.New("want off, auto or a number from 2 to 16")
}

// Ports returns the number of ports, 0 for none.
func (s Spray) Ports() int {
	if s == SprayAuto {
		return autoSprayPorts
	}
	return int(s)
}

// String returns "off", "auto" or the number.
func (s Spray) String() string {
	switch s {
	case SprayOff:
		return "off"
	case SprayAuto:
		return "auto"
	}
	return strconv.Itoa(int(s))
}

// MarshalText implements encoding.TextMarshaler with String.
func (s Spray) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler with ParseSpray.
func (s *Spray) UnmarshalText(text []byte) (err error) {
	*s, err = ParseSpray(string(text))
	return err
}
