// SPDX-License-Identifier: Apache-2.0

//go:build docs

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
)

const confManualHead = `.TH "ROPEWALK-CONF" "5" "" "ropewalk %s" "File Formats"
.nh
.ad l
.SH NAME
ropewalk\-conf \- configuration file of a tunnel
.SH SYNOPSIS
/etc/wireguard/\fIINTERFACE\fP.conf
.SH DESCRIPTION
.B ropewalk up\fR, \fBdown\fR, \fBreload\fR, \fBsave\fR and \fBstrip
read the file of wg\-quick(8), and ropewalk's own keys in it. \fBropewalk setconf\fR, \fBaddconf\fR and \fBsyncconf\fR read
the file of wg(8), which has only the keys marked wg. Keys and sections are case\-insensitive, and # begins a comment.
A file with an error changes nothing; all its errors are reported at once, with file and line. \fBropewalk check\fR
reads a file and changes nothing.
.PP
A change of a key marked reload takes effect with \fBropewalk reload\fR, which keeps sessions. Others need
\fBropewalk down\fR and \fBropewalk up\fR.
`

const confManualTail = `.SH EXAMPLE
.nf
.RS
[Interface]
PrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=
Address = 10.99.0.1/24, fd99::1/64
ListenPort = 51820
Metrics = 127.0.0.1:9820

[Peer]
PublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=
AllowedIPs = 10.99.0.2/32, fd99::2/128
Endpoint = vpn.example.org:51820
.RE
.fi
.SH SEE ALSO
ropewalk(8), ropewalk\-up(8), ropewalk\-check(8), wg(8), wg\-quick(8)
`

// writeConfManual writes ropewalk-conf(5), from the same keys as docs/configuration.md.
func writeConfManual(dir string) error {
	var b strings.Builder
	fmt.Fprintf(&b, confManualHead, roff(version))
	section := ""
	for _, k := range conffile.Keys() {
		if k.Section != section {
			section = k.Section
			fmt.Fprintf(&b, ".SH [%s]\n", strings.ToUpper(section))
		}
		change := "reload"
		if !k.Reload {
			change = "restart"
		}
		fmt.Fprintf(&b, ".TP\n.B %s\n%s\n.br\nValue: %s. Default: %s. Of %s, %s.\n", k.Name, roff(k.About), roff(k.Values), roff(k.Default), roff(k.Origin), change)
	}
	b.WriteString(confManualTail)
	if err := os.WriteFile(filepath.Join(dir, "ropewalk-conf.5"), []byte(b.String()), 0o644); err != nil {
		return fmt.Errorf("writing the manual page of configuration files: %w", err)
	}
	return nil
}

// roff converts a line of Markdown.
func roff(text string) string {
	text = regexp.MustCompile(`\[([^]]+)\]\([^)]*\)`).ReplaceAllString(text, "$1")
	text = strings.NewReplacer(`\|`, "|", `\`, `\e`, "-", `\-`, "–", `\(en`).Replace(text)
	text = regexp.MustCompile("`([^`]*)`").ReplaceAllString(text, `\fB$1\fR`)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	return text
}
