// SPDX-License-Identifier: Apache-2.0

package manpage

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
)

func sample() *cobra.Command {
	root := &cobra.Command{
		Use: "rope", Short: "Make ropes", Long: "rope makes `ropes walk`.\n.dots are text, and so is it's.\n\nA list:\n  one\n  two \\ three …",
		Example: "  rope walk --far 3",
	}
	walk := &cobra.Command{Use: "walk YARN", Short: "Walk", Long: "walk walks.", Run: func(*cobra.Command, []string) {}}
	walk.Flags().IntP("far", "f", 0, "walk so many `steps`,\nnot more")
	walk.Flags().Bool("hidden", false, "")
	_ = walk.Flags().MarkHidden("hidden")
	root.AddCommand(walk, &cobra.Command{Use: "secret", Hidden: true, Run: walk.Run})
	return root
}

func TestPagesAreWhatTheyWere(t *testing.T) {
	pages := Pages(sample(), "v1.2")
	if len(pages) != 2 || pages[0].Name != "rope.8" || pages[1].Name != "rope-walk.8" {
		t.Fatalf("got %d pages", len(pages))
	}
	const end = ".SH EXIT STATUS\n.TP\n0\nsuccess\n.TP\n1\nan error\n.TP\n2\nthe command line is wrong\n.TP\n3\na check failed\n" +
		".TP\n4\nno check failed, but some warned\n.TP\n5\nno daemon answers for the interface\n.SH SEE ALSO\n"
	want := ".TH ROPE 8 \"\" \"ropewalk v1.2\" \"System Administration\"\n.SH NAME\nrope \\- Make ropes\n.SH SYNOPSIS\n\\fBrope [flags]\\fP\n" +
		".SH DESCRIPTION\nrope makes \\fBropes walk\\fP.\n\\&.dots are text, and so is it\\(aqs.\n.PP\nA list:\n" +
		".PP\n.nf\n.RS 4\none\ntwo \\e three \\[u2026]\n.RE\n.fi\n.PP\n.SH COMMANDS\n.TP\n\\fBwalk\\fP\nWalk. See \\fBrope\\-walk\\fP(8).\n" +
		".SH OPTIONS\n.TP\n\\fB\\-h\\fP, \\fB\\-\\-help\\fP\nhelp for rope\n" +
		".SH EXAMPLES\n.PP\n.nf\n.RS 4\nrope walk \\-\\-far 3\n.RE\n.fi\n.PP\n" + end + "\\fBwg\\fP(8), \\fBwg-quick\\fP(8)\n"
	if diff := cmp.Diff(want, string(pages[0].Text)); diff != "" {
		t.Error(diff)
	}
	for _, part := range []string{
		".SH OPTIONS\n.TP\n\\fB\\-f\\fP, \\fB\\-\\-far\\fP \\fIsteps\\fP\nwalk so many steps, not more\n",
		".SH SEE ALSO\n\\fBrope\\fP(8), ",
	} {
		if !strings.Contains(string(pages[1].Text), part) {
			t.Errorf("no %q in\n%s", part, pages[1].Text)
		}
	}
}

func TestGroffHasNothingToComplainOf(t *testing.T) {
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Skip("needs groff(1): ", err)
	}
	for _, p := range Pages(sample(), "v1.2") {
		cmd := exec.Command(groff, "-man", "-Tutf8", "-ww", "-z")
		cmd.Stdin = strings.NewReader(string(p.Text))
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v\n%s", p.Name, err, out)
		}
	}
}
