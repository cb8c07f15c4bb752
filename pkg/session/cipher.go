// SPDX-License-Identifier: Apache-2.0

package session

import "github.com/ropewalk/ropewalk/pkg/chachapoly"

// Cipher names the ChaCha20-Poly1305 that seals and opens here, for people.
func Cipher() string { return chachapoly.Implementation() }
