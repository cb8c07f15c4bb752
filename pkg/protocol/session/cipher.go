// SPDX-License-Identifier: Apache-2.0

package session

import "github.com/ropewalk/ropewalk/pkg/protocol/chachapoly"

// Cipher returns the name of the ChaCha20-Poly1305 implementation in use, for display.
func Cipher() string { return chachapoly.Implementation() }
