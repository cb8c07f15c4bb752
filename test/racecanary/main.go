// SPDX-License-Identifier: Apache-2.0

// Command racecanary has a deliberate data race. `make test-race` runs it to prove that the race detector is on.
package main

import "sync"

func main() {
	var wg sync.WaitGroup
	n := 0
	for range 2 {
		wg.Go(func() {
			for range 10000 {
				n++
			}
		})
	}
	wg.Wait()
	println(n)
}
