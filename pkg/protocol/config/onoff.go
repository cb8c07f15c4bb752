// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"strings"
)

// OnOff is a setting that is on or off.
type OnOff bool

// ParseOnOff returns the value for "on" or "off", in any case.
func ParseOnOff(s string) (OnOff, error) {
	switch {
	case strings.EqualFold(s, "on"):
		return true, nil
	case strings.EqualFold(s, "off"):
		return false, nil
	}
	return false, errors.New("want on or off")
}

// String returns "on" or "off".
func (o OnOff) String() string {
	if o {
		return "on"
	}
	return "off"
}

// MarshalText implements encoding.TextMarshaler with String.
func (o OnOff) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler with ParseOnOff.
func (o *OnOff) UnmarshalText(text []byte) (err error) {
	*o, err = ParseOnOff(string(text))
	return err
}
