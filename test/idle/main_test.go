// SPDX-License-Identifier: Apache-2.0

package idle

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/test/program"
)

var measure = flag.Duration("measure", time.Second, "how long to count a daemon's wakeups; with 30s or more the test first waits until its sessions are idle")

// settleFor is longer than the timers that a handshake starts: the passive keepalive after 10 s, and the check for an answer
// after 15 s.
const settleFor = 20 * time.Second

// settle waits until new sessions are idle. Short measurements do not wait.
func settle() {
	if *measure >= 30*time.Second {
		time.Sleep(settleFor)
	}
}

var ropewalk = program.Ropewalk()

func TestMain(m *testing.M) { os.Exit(program.Main(m, ropewalk)) }
