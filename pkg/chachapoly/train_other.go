// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 || purego

package chachapoly

// trainScratch is empty: without vector lanes a set of messages is worked off one by one.
type trainScratch struct{}

func trainImplementations() []*implementation { return nil }
