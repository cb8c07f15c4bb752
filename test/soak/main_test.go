// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"os"
	"testing"

	"github.com/ropewalk/ropewalk/test/program"
)

var ropewalk = program.Ropewalk()

func TestMain(m *testing.M) { os.Exit(program.Main(m, ropewalk)) }
