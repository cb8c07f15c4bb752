// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 || purego

package packet

// useVector returns false: only amd64 has vector code.
func useVector(int) bool { return false }

func wordsVector(b []byte) uint64 { return wordsGeneric(b) }
