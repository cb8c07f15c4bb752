// SPDX-License-Identifier: Apache-2.0

// The generator of the package's assembly: `go generate` in the package runs it once for each part.
package main

import (
	"flag"
	"fmt"
	"os"

	. "github.com/mmcloughlin/avo/build"
)

func main() {
	flag.Parse()
	switch part := flag.Arg(0); part {
	case "chacha":
		chacha()
	case "poly":
		poly()
	case "chacha256":
		chacha256()
	case "poly256":
		poly256()
	default:
		fmt.Fprintf(os.Stderr, "no part is named %q\n", part)
		os.Exit(2)
	}
	Generate()
}
