// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 || purego

package chachapoly

// trainScratch is empty: without vector code messages are processed one by one.
type trainScratch struct{}

func trainImplementations() []*implementation { return nil }
