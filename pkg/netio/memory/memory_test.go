// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/test/expect"
)

func TestOnlyUnchangedPagesOfProgramAreReleased(t *testing.T) {
	const smaps = `00400000-00c00000 r-xp 00000000 fe:00 1234                               /usr/bin/ropewalk
Size:               8192 kB
Rss:                4096 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
00c00000-01a00000 r--p 00800000 fe:00 1234                               /usr/bin/ropewalk
Anonymous:             4 kB
01a00000-01b00000 rw-p 01600000 fe:00 1234                               /usr/bin/ropewalk
Anonymous:             0 kB
01b00000-01c00000 r--p 00000000 00:00 0
Anonymous:             0 kB
01c00000-01d00000 r--p 01800000 fe:00 1234                               /usr/bin/ropewalk
Anonymous:             0 kB
7f0000000000-7f0000001000 r--p 00000000 fe:00 99                         /a file (deleted)
Anonymous:             0 kB
`
	for code, want := range map[uintptr][]area{
		0x500000: {{0x400000, 0xc00000, "fe:00", "1234"}, {0x1c00000, 0x1d00000, "fe:00", "1234"}},
		0x100000: nil, // unknown code
	} {
		if got, err := programAreas(strings.NewReader(smaps), code); err != nil || !slices.Equal(got, want) {
			t.Errorf("code at %x: got %+v, error %v, want %+v", code, got, err, want)
		}
	}
}

func TestProgramRunsWithoutItsPages(t *testing.T) {
	f, err := os.Open("/proc/self/smaps")
	expect.NoError(t, err)
	defer f.Close()
	if areas, err := programAreas(f, reflect.ValueOf(releaseProgram).Pointer()); err != nil || len(areas) == 0 {
		t.Fatalf("no mapping of the program: %v, %v", areas, err)
	}
	expect.NoError(t, releaseProgram())
	GiveBack()
	if _, err := os.Stat(os.Args[0]); err != nil { // after code that was not mapped
		t.Error(err)
	}
}
