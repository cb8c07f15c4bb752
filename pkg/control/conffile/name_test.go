// SPDX-License-Identifier: Apache-2.0

package conffile

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/test/expect"
)

func TestNamesOfPeersAreComments(t *testing.T) {
	const peer = "[Peer]\n"
	const key = "PublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=\n"
	for _, c := range []struct {
		about, text string
		want        []string
	}{
		{"in the section", peer + "# Name = a\n" + key + "\n" + peer + key + "#name=b\n", []string{"a", "b"}},
		{"above the sections", "# Name = a\n" + peer + key + "\n# Name = b\n" + peer + key, []string{"a", "b"}},
		{"above, with an empty line", "# Name = a\n\n" + peer + key + "\n# Name = b\n\n" + peer + key, []string{"a", "b"}},
		{"above, without an empty line before", peer + key + "# Name = b\n" + peer + key, []string{"", "b"}},
		{"at the end of the section", peer + key + "# Name = a\n\n" + peer + key, []string{"a", ""}},
		{"friendly_name", peer + "  ## friendly_name =  Anna's phone \n" + key, []string{"Anna's phone"}},
		{"the last counts", peer + "# Name = a\n# Name = b\n" + key, []string{"b"}},
		{"of the interface", "[Interface]\n# Name = host\nListenPort = 1\n" + peer + key, []string{""}},
		{"a section that is a comment", "# [Peer]\n# Name = old\n# " + key + peer + key, []string{""}},
		{"other comments", peer + "# the Name = a\nPublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg= # Name = a\n", []string{""}},
		{"not printable", peer + "# Name = a\x1b[31m\n" + key, []string{""}},
	} {
		for _, dialect := range []Dialect{WG, Quick} {
			f, err := Parse("wg0.conf", strings.NewReader(c.text), dialect)
			if err != nil {
				t.Errorf("%s: got error %v, want none", c.about, err)
				continue
			}
			var got []string
			for i := range f.Peers {
				got = append(got, f.Peers[i].Name)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%s: got %q, want %q", c.about, got, c.want)
			}
		}
	}
}

func TestFormatKeepsNames(t *testing.T) {
	const text = "[Peer]\n# Name = a\nPublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=\n"
	f, err := Parse("wg0.conf", strings.NewReader(text), WG)
	expect.NoError(t, err)
	var b bytes.Buffer
	expect.NoError(t, f.Format(&b))
	if !strings.HasSuffix(b.String(), text) {
		t.Errorf("got %q, want it to end with %q", b.String(), text)
	}
}
