// SPDX-License-Identifier: Apache-2.0

// Package manpage writes manual pages from cobra commands, in man(7)'s macros. It does less than cobra/doc, whose
// Markdown renderer and YAML would be linked into the program.
package manpage

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// section is that of system administration commands.
const section = "8"

// Page is one manual page.
type Page struct {
	Name string // of the file, such as ropewalk-show.8
	Text []byte
}

// Pages returns the page of a command and those of all that is under it, but for what is hidden. It holds no date, so that
// the same commands give the same pages.
func Pages(cmd *cobra.Command, version string) []Page {
	pages := []Page{{pageName(cmd) + "." + section, render(cmd, version)}}
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			pages = append(pages, Pages(c, version)...)
		}
	}
	return pages
}

func pageName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

func render(cmd *cobra.Command, version string) []byte {
	cmd.InitDefaultHelpFlag()
	var b page
	fmt.Fprintf(&b, ".TH %s %s \"\" \"ropewalk %s\" \"System Administration\"\n", strings.ToUpper(pageName(cmd)), section, escape(version))
	b.heading("NAME")
	fmt.Fprintf(&b, "%s \\- %s\n", escape(pageName(cmd)), escape(cmd.Short))
	b.heading("SYNOPSIS")
	fmt.Fprintf(&b, "\\fB%s\\fP\n", escape(cmd.UseLine()))
	b.heading("DESCRIPTION")
	b.prose(cmd.Long)
	b.commands(cmd)
	b.flags("OPTIONS", cmd.NonInheritedFlags())
	b.flags("GLOBAL OPTIONS", cmd.InheritedFlags())
	if cmd.Example != "" {
		b.heading("EXAMPLES")
		b.verbatim(strings.Split(cmd.Example, "\n"))
	}
	b.exitStatus()
	b.seeAlso(cmd)
	return b.Bytes()
}

// page collects the source of one page.
type page struct{ bytes.Buffer }

func (b *page) heading(title string) { fmt.Fprintf(b, ".SH %s\n", title) }

// prose fills paragraphs; lines that begin with blanks are lists and stay as they are.
func (b *page) prose(text string) {
	var kept []string
	flush := func() {
		if len(kept) > 0 {
			b.verbatim(kept)
			kept = nil
		}
	}
	for line := range strings.SplitSeq(text, "\n") {
		switch {
		case strings.HasPrefix(line, "  "):
			kept = append(kept, line)
		case line == "":
			flush()
			b.WriteString(".PP\n")
		default:
			flush()
			b.WriteString(line2roff(line) + "\n")
		}
	}
	flush()
}

func (b *page) verbatim(lines []string) {
	b.WriteString(".PP\n.nf\n.RS 4\n")
	for _, line := range lines {
		b.WriteString(line2roff(strings.TrimPrefix(line, "  ")) + "\n")
	}
	b.WriteString(".RE\n.fi\n.PP\n")
}

func (b *page) commands(cmd *cobra.Command) {
	if !cmd.HasAvailableSubCommands() {
		return
	}
	b.heading("COMMANDS")
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			fmt.Fprintf(b, ".TP\n\\fB%s\\fP\n%s. See \\fB%s\\fP(%s).\n", escape(c.Name()), escape(c.Short), escape(pageName(c)), section)
		}
	}
}

func (b *page) flags(title string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	b.heading(title)
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		name := "\\fB" + escape("--"+f.Name) + "\\fP"
		if f.Shorthand != "" {
			name = "\\fB" + escape("-"+f.Shorthand) + "\\fP, " + name
		}
		if value != "" {
			name += " \\fI" + escape(value) + "\\fP"
		}
		fmt.Fprintf(b, ".TP\n%s\n%s\n", name, line2roff(strings.ReplaceAll(usage, "\n", " ")))
	})
}

func (b *page) exitStatus() {
	b.heading("EXIT STATUS")
	for _, s := range [][2]string{
		{"0", "success"},
		{"1", "an error"},
		{"2", "the command line is wrong"},
		{"3", "a check failed"},
		{"4", "no check failed, but some warned"},
		{"5", "no daemon answers for the interface"},
	} {
		fmt.Fprintf(b, ".TP\n%s\n%s\n", s[0], s[1])
	}
}

func (b *page) seeAlso(cmd *cobra.Command) {
	refs := []string{"\\fBwg\\fP(8)", "\\fBwg-quick\\fP(8)"}
	if p := cmd.Parent(); p != nil {
		refs = append([]string{"\\fB" + escape(pageName(p)) + "\\fP(" + section + ")"}, refs...)
	}
	b.heading("SEE ALSO")
	b.WriteString(strings.Join(refs, ", ") + "\n")
}

// line2roff escapes a line and makes `what is quoted so` bold.
func line2roff(line string) string {
	parts := strings.Split(escape(line), "`")
	var t strings.Builder
	for i, part := range parts {
		switch {
		case i == 0:
		case i%2 == 1 && i < len(parts)-1:
			t.WriteString("\\fB")
		case i%2 == 0:
			t.WriteString("\\fP")
		default:
			t.WriteString("`")
		}
		t.WriteString(part)
	}
	return t.String()
}

// escape keeps characters what they are: groff(7) would take a hyphen for U+2010, and a leading dot or quote for a request.
func escape(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`).Replace(s)
	if strings.HasPrefix(s, ".") {
		s = `\&` + s
	}
	var b strings.Builder
	for _, r := range s {
		if r < 0x80 {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, `\[u%04X]`, r)
		}
	}
	return b.String()
}
