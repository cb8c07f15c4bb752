// SPDX-License-Identifier: Apache-2.0

//go:build (!amd64 && !arm64) || purego

package chachapoly

// vectorScratch is empty: without vector code messages are processed one by one.
type vectorScratch struct{}

var vectorImplementations []*implementation
