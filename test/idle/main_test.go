// SPDX-License-Identifier: Apache-2.0

package idle

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/test/program"
)

var measure = flag.Duration("measure", time.Second, "how long to count a daemon's wakeups; from 30s on it is left to settle first")

// settleFor is how long what a handshake has begun goes on: the last is a keepalive after ten seconds, and a look whether
// data was answered after fifteen.
const settleFor = 20 * time.Second

// settle waits until a new session has come to rest, if there is time to measure that.
func settle() {
	if *measure >= 30*time.Second {
		time.Sleep(settleFor)
	}
}

var ropewalk = program.Ropewalk()

func TestMain(m *testing.M) { os.Exit(program.Main(m, ropewalk)) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits until cond holds.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}
