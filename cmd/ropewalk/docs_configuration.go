// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ropewalk/ropewalk/pkg/conffile"
)

func newDocsConfigurationCmd() *cobra.Command {
	return &cobra.Command{
		Use:               "configuration",
		Short:             "Print the reference of keys, flags and variables",
		Long:              "configuration prints all keys of the files, all flags of all commands and all variables of the environment, in Markdown.",
		Example:           "  ropewalk docs configuration >docs/configuration.md",
		Args:              usageArgs(cobra.NoArgs),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := io.WriteString(cmd.OutOrStdout(), configurationPage(cmd.Root()))
			return err
		},
	}
}

const configurationHead = `# Configuration

What can be set, where, and what holds if it is not. This page is written by
` + "`go test ./cmd/ropewalk -run Configuration -update`; `ropewalk docs configuration` prints it for the version that is installed." + `

## Files

` + "`/etc/wireguard/wg0.conf` is wg-quick's file, and `ropewalk up`, `down`, `reload`, `save` and `strip` read it as wg-quick does, with some" + `
keys of ropewalk's own. ` + "`ropewalk setconf`, `addconf` and `syncconf` read wg's files, which have wg's keys alone; `ropewalk strip wg0` makes one of a" + `
file of wg-quick's. Keys and sections are case-insensitive; ` + "`#` begins a comment; a file with a mistake changes nothing, and all" + `
mistakes are reported at once, with file and line.

` + "```ini" + `
[Interface]
PrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=
Address = 10.99.0.1/24, fd99::1/64
ListenPort = 51820
Metrics = 127.0.0.1:9820   # ropewalk's own; wg-quick refuses it

[Peer]
PublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=
AllowedIPs = 10.99.0.2/32, fd99::2/128
Endpoint = vpn.example.org:51820
` + "```" + `

*Change* says what makes a running tunnel follow a change of the file: ` + "`ropewalk reload wg0`, which keeps sessions, or" + `
` + "`ropewalk down wg0` and `up`. What is wg's, `Spread`, `SpreadPorts`," + `
` + "`Underlay` and `RxCPUs` can be set in a running tunnel too, without the file: `ropewalk set`." + `
`

const commandsHead = `
## Commands

Besides these each has ` + "`--help`" + `. Arguments are in the manual (` + "`man ropewalk-set`" + `) and in the help (` + "`ropewalk help set`" + `).
Exit codes: 0 all went well, 1 an error, 2 a wrong command line, 3 a check failed, 4 none failed but some warned, 5 no daemon answers
for the interface. The agent's flags: ` + "`ropewalk-agent --help`, [Kubernetes](kubernetes.md)." + `

| flag | default | what it says |
| --- | --- | --- |
`

const environmentHead = `
## Environment

| variable | value | used by | what it says |
| --- | --- | --- | --- |
`

const placesHead = `
## Places

| path | what is there |
| --- | --- |
`

// configurationPage is docs/configuration.md.
func configurationPage(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString(configurationHead)
	section := ""
	for _, k := range conffile.Keys() {
		if k.Section != section {
			section = k.Section
			b.WriteString("\n### [" + section + "]\n\n| key | whose | value | default | change | what it says |\n| --- | --- | --- | --- | --- | --- |\n")
		}
		change := "restart"
		if k.Reload {
			change = "reload"
		}
		tableRow(&b, "`"+k.Name+"`", k.Origin, k.Values, k.Default, change, k.About)
	}
	b.WriteString(commandsHead)
	writeFlags(&b, root)
	b.WriteString(environmentHead)
	for _, v := range environment() {
		tableRow(&b, "`"+v.name+"`", v.values, v.used, v.about)
	}
	b.WriteString(placesHead)
	for _, p := range places() {
		tableRow(&b, "`"+p.path+"`", p.about)
	}
	return b.String()
}

// tableRow writes a row of a Markdown table.
func tableRow(b *strings.Builder, cells ...string) {
	for _, c := range cells {
		b.WriteString("| " + strings.ReplaceAll(c, "|", `\|`) + " ")
	}
	b.WriteString("|\n")
}

// writeFlags writes a row for a command, for each of its flags, and the same for the commands under it.
func writeFlags(b *strings.Builder, cmd *cobra.Command) {
	if cmd.HasParent() {
		tableRow(b, "**`"+strings.TrimPrefix(cmd.UseLine(), "ropewalk ")+"`**", "", cmd.Short)
	}
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name == "help" || f.Hidden {
			return
		}
		about, byDefault := flagTexts(f)
		tableRow(b, flagForms(f), byDefault, about)
	})
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			writeFlags(b, c)
		}
	}
}

// flagForms is how a flag is given.
func flagForms(f *pflag.Flag) string {
	kind, _ := pflag.UnquoteUsage(f)
	form := "--" + f.Name
	if kind != "" {
		form += " " + kind
	}
	if f.Shorthand != "" {
		form = "-" + f.Shorthand + ", " + form
	}
	return "`" + form + "`"
}

// flagTexts returns what a flag says and its default, which some flags have in their help: it is no value of theirs.
func flagTexts(f *pflag.Flag) (about, byDefault string) {
	_, about = pflag.UnquoteUsage(f)
	about = strings.Join(strings.Fields(about), " ")
	said := regexp.MustCompile(`\(((?:[^()]*; )?)default:? ([^()]*)\)$`)
	switch m := said.FindStringSubmatch(about); {
	case m != nil:
		about = strings.TrimSpace(strings.TrimSuffix(about, m[0]))
		if m[1] != "" {
			about += " (" + strings.TrimSuffix(m[1], "; ") + ")"
		}
		byDefault = m[2]
	case f.DefValue == "", f.DefValue == "false", f.DefValue == "[]", f.DefValue == "0":
	default:
		byDefault = fmt.Sprintf("`%s`", f.DefValue)
	}
	return strings.ReplaceAll(about, "<", "&lt;"), byDefault
}
