// SPDX-License-Identifier: Apache-2.0

package attack

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/test/program"
)

var (
	duration = flag.Duration("attack", 0, "how long each attack lasts beside traffic, at most a minute; 0 sends a few thousand packets of each")
	mode     = flag.String("underlay", "udp", "underlay of the attacked tunnel")
	rate     = flag.Int("rate", 100_000, "packets per second of an attack")
	ropewalk = program.Ropewalk()
)

// maxDuration bounds an attack.
const maxDuration = time.Minute

func TestMain(m *testing.M) { os.Exit(program.Main(m, ropewalk)) }
