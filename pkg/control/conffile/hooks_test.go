// SPDX-License-Identifier: Apache-2.0

package conffile

import (
	"slices"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/test/expect"
)

func TestHooksAreReadFromFileWithMistakes(t *testing.T) {
	text := "[Interface]\nPrivateKey = x\nTable = off\nSaveConfig = true\nPreDown = a\n" + strings.Repeat("Speed = 1\n", 2*maxErrors) +
		"PostDown = b; c\nMTU = 1\n[Peer]\nEndpoint = x\nPostDown = not here\n[Peers]\nPostDown = nor here\n[Interface]\nPostDown = d\n"
	if _, err := Parse("wg0.conf", strings.NewReader(text), Quick); err == nil {
		t.Fatal("the file has no mistakes")
	}
	f, err := ParseHooks("wg0.conf", strings.NewReader(text))
	expect.NoError(t, err)
	got := &f.Interface
	if got.Table != "off" || got.SaveConfig || !slices.Equal(got.PreDown, []string{"a"}) || !slices.Equal(got.PostDown, []string{"b; c", "d"}) || len(f.Peers) > 0 {
		t.Errorf("got %+v", f)
	}
}
