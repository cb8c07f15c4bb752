// SPDX-License-Identifier: Apache-2.0

package page

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

const sample = "# A `title`\n\nText with `ropewalk show` and a [link](b.md#x), ![pic](p.svg) and `[no](link)`.\n\n" +
	"<!-- test: tunnel -->\n```sh\nropewalk show wg0\n```\n\n```\n# no heading\n```\n\n## A title\n\n- item\n\n    still the item\n\nMore:\n\n    make test\n    make check\n\n" +
	"## A *second*, `b|c` (x)\n\n## Größe ½ – a_b\n\n## A title\n\n  ```sh\n  last"

func TestParseFindsBlocksLinksAndAnchors(t *testing.T) {
	want := &Page{
		Path: "docs/a.md",
		Blocks: []Block{
			{Page: "docs/a.md", Heading: "A `title`", Line: 7, Lang: "sh", Marker: "test: tunnel", Text: "ropewalk show wg0\n"},
			{Page: "docs/a.md", Heading: "A `title`", Line: 11, Text: "# no heading\n"},
			{Page: "docs/a.md", Heading: "A title", Line: 22, Text: "make test\nmake check\n"},
			{Page: "docs/a.md", Heading: "A title", Line: 32, Lang: "sh", Text: "  last\n"},
		},
		Spans:   []Span{{1, "title"}, {3, "ropewalk show"}, {3, "[no](link)"}, {25, "b|c"}},
		Links:   []Span{{3, "b.md#x"}, {3, "p.svg"}},
		Anchors: []string{"a-title", "a-title-1", "a-second-bc-x", "größe---a_b", "a-title-2"},
	}
	if diff := cmp.Diff(want, Parse("docs/a.md", sample)); diff != "" {
		t.Error(diff)
	}
}

func TestCallsFindsNestedCommands(t *testing.T) {
	text := "# comment\nsudo ropewalk bench --quick > out 2>&1 # why\n" +
		"ip netns exec a /tmp/ropewalk run \\\n  wg0 & ropewalk show wg0 | jq '.a | .b'\n" +
		"wg syncconf wg0 <(ropewalk strip wg0)\nx=\"$(ropewalk pubkey <key)\"\nLOG_LEVEL=debug ropewalk run wg0\n" +
		"cat >f <<CONF\nropewalk nonsense\nCONF\necho ropewalk is good; apt-get install -y ropewalk\n" +
		"for i in 1 2; do ropewalk log wg0; done\n" +
		"  spread: off (it is the peer's NAT)\nropewalk top wg0\n"
	want := [][]string{
		{"bench", "--quick"},
		{"run", "wg0"},
		{"show", "wg0"},
		{"strip", "wg0"},
		{"pubkey"},
		{"run", "wg0"},
		{"log", "wg0"},
		{"top", "wg0"},
	}
	if diff := cmp.Diff(want, Calls(text, "ropewalk")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([][]string{{"a", "b c", ""}, {"d"}}, Commands("a 'b c' ''; d")); diff != "" {
		t.Error(diff)
	}
}

func TestPageCallsSearchesBlocksAndSpans(t *testing.T) {
	p := Parse("docs/a.md", "`make build`, or `ropewalk make`:\n\n```sh\nmake a b\nsudo make c\n```\n")
	type call struct {
		Line int
		Args []string
	}
	var got []call
	for line, args := range p.Calls("make") {
		got = append(got, call{line, args})
	}
	if diff := cmp.Diff([]call{{1, []string{"build"}}, {4, []string{"a", "b"}}, {4, []string{"c"}}}, got); diff != "" {
		t.Error(diff)
	}
	for range p.Calls("make") {
		break // an iterator that calls yield again would panic
	}
}

func FuzzParse(f *testing.F) {
	f.Add(sample)
	f.Add("```sh\ncat <<\n")
	f.Add("```sh\nropewalk up \"$(a <(b)\\")
	f.Fuzz(func(_ *testing.T, text string) {
		for _, b := range Parse("x.md", text).Blocks {
			_, _ = b.First(), Commands(b.Text)
		}
	})
}
