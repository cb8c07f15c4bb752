// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 || purego

package packet

// vectorsPay says never: only amd64 has a wordsVector of its own.
func vectorsPay(int) bool { return false }

func wordsVector(b []byte) uint64 { return wordsGeneric(b) }
