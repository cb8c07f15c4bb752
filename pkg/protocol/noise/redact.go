// SPDX-License-Identifier: Apache-2.0

package noise

import (
	"fmt"
	"io"
	"log/slog"
)

// redacted is printed in place of a secret. The words are wg(8)'s.
const redacted = "(hidden)"

// hidden, embedded, makes a struct that holds secrets print as redacted in fmt, slog, JSON and text encodings.
type hidden struct{}

func (hidden) Format(f fmt.State, _ rune)   { _, _ = io.WriteString(f, redacted) }
func (hidden) String() string               { return redacted }
func (hidden) GoString() string             { return redacted }
func (hidden) LogValue() slog.Value         { return slog.StringValue(redacted) }
func (hidden) MarshalText() ([]byte, error) { return []byte(redacted), nil }
func (hidden) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// Format implements fmt.Formatter without revealing the key, whatever the verb.
func (PrivateKey) Format(f fmt.State, verb rune) { hidden{}.Format(f, verb) }

// String does not reveal the key.
func (PrivateKey) String() string { return redacted }

// GoString does not reveal the key.
func (PrivateKey) GoString() string { return redacted }

// LogValue does not reveal the key.
func (PrivateKey) LogValue() slog.Value { return hidden{}.LogValue() }

// MarshalText does not reveal the key.
func (PrivateKey) MarshalText() ([]byte, error) { return hidden{}.MarshalText() }

// MarshalJSON does not reveal the key.
func (PrivateKey) MarshalJSON() ([]byte, error) { return hidden{}.MarshalJSON() }

// Format implements fmt.Formatter without revealing the key, whatever the verb.
func (PresharedKey) Format(f fmt.State, verb rune) { hidden{}.Format(f, verb) }

// String does not reveal the key.
func (PresharedKey) String() string { return redacted }

// GoString does not reveal the key.
func (PresharedKey) GoString() string { return redacted }

// LogValue does not reveal the key.
func (PresharedKey) LogValue() slog.Value { return hidden{}.LogValue() }

// MarshalText does not reveal the key.
func (PresharedKey) MarshalText() ([]byte, error) { return hidden{}.MarshalText() }

// MarshalJSON does not reveal the key.
func (PresharedKey) MarshalJSON() ([]byte, error) { return hidden{}.MarshalJSON() }

// Format implements fmt.Formatter without revealing the key, whatever the verb.
func (SessionKey) Format(f fmt.State, verb rune) { hidden{}.Format(f, verb) }

// String does not reveal the key.
func (SessionKey) String() string { return redacted }

// GoString does not reveal the key.
func (SessionKey) GoString() string { return redacted }

// LogValue does not reveal the key.
func (SessionKey) LogValue() slog.Value { return hidden{}.LogValue() }

// MarshalText does not reveal the key.
func (SessionKey) MarshalText() ([]byte, error) { return hidden{}.MarshalText() }

// MarshalJSON does not reveal the key.
func (SessionKey) MarshalJSON() ([]byte, error) { return hidden{}.MarshalJSON() }

// Format implements fmt.Formatter without revealing the keys, whatever the verb.
func (Keys) Format(f fmt.State, verb rune) { hidden{}.Format(f, verb) }
