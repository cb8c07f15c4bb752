// SPDX-License-Identifier: Apache-2.0

// The generator of the package's assembly, for `go generate` in the package.
package main

import . "github.com/mmcloughlin/avo/build"

func main() {
	ConstraintExpr("!purego")
	words512()
	words256()
	Generate()
}
