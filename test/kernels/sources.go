// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const archiveKeyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// hostMirrors returns the URIs of the Debian mirrors in the host's apt configuration, in its order.
func hostMirrors(etcApt string) ([]string, error) {
	files := []string{filepath.Join(etcApt, "sources.list")}
	for _, pattern := range []string{"*.sources", "*.list"} {
		more, err := filepath.Glob(filepath.Join(etcApt, "sources.list.d", pattern))
		if err != nil {
			return nil, fmt.Errorf("listing apt sources: %w", err)
		}
		files = append(files, more...)
	}
	var uris []string
	for _, name := range files {
		b, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading apt sources: %w", err)
		}
		parse := parseOneLine
		if strings.HasSuffix(name, ".sources") {
			parse = parseDeb822
		}
		uris = append(uris, parse(string(b))...)
	}
	return unique(uris), nil
}

// parseDeb822 reads the stanzas of a .sources file (sources.list(5), "deb822-style format").
func parseDeb822(text string) []string {
	var uris []string
	for stanza := range strings.SplitSeq(strings.ReplaceAll(text, "\r\n", "\n"), "\n\n") {
		fields := deb822Fields(stanza)
		signed, named := fields["signed-by"]
		switch {
		case strings.EqualFold(fields["enabled"], "no"),
			!slices.Contains(strings.Fields(fields["types"]), "deb"),
			!isDebian(fields["components"], signed, named):
			continue
		}
		uris = append(uris, strings.Fields(fields["uris"])...)
	}
	return uris
}

// deb822Fields returns a stanza's fields by lower-case name. A line that begins with a blank continues the previous field.
func deb822Fields(stanza string) map[string]string {
	fields := map[string]string{}
	last := ""
	for line := range strings.SplitSeq(stanza, "\n") {
		switch {
		case strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, " "), strings.HasPrefix(line, "\t"):
			fields[last] += " " + strings.TrimSpace(line)
		default:
			name, value, _ := strings.Cut(line, ":")
			last = strings.ToLower(strings.TrimSpace(name))
			fields[last] = strings.TrimSpace(value)
		}
	}
	return fields
}

// parseOneLine reads a sources.list(5) file: deb [options] uri suite components...
func parseOneLine(text string) []string {
	var uris []string
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "deb ")
		if !ok {
			continue
		}
		options := ""
		if rest = strings.TrimSpace(rest); strings.HasPrefix(rest, "[") {
			if options, rest, ok = strings.Cut(rest[1:], "]"); !ok {
				continue
			}
		}
		f := strings.Fields(rest)
		if len(f) < 3 {
			continue
		}
		signed, named := signedBy(options)
		if isDebian(strings.Join(f[2:], " "), signed, named) {
			uris = append(uris, f[0])
		}
	}
	return uris
}

func signedBy(options string) (value string, named bool) {
	for o := range strings.FieldsSeq(options) {
		if v, ok := strings.CutPrefix(o, "signed-by="); ok {
			return v, true
		}
	}
	return "", false
}

// isDebian reports whether a repository is Debian's. Third-party repositories are signed with other keys.
func isDebian(components, signedBy string, named bool) bool {
	return slices.Contains(strings.Fields(components), "main") &&
		(!named || strings.Contains(signedBy, "debian-archive-"))
}

// sourcesFor returns a sources.list for the given suites on the given mirrors. Security suites are on separate mirrors.
func sourcesFor(mirrors, suites []string) string {
	var b strings.Builder
	for _, uri := range mirrors {
		for _, suite := range unique(suites) {
			if isSecurity(uri) == isSecurity(suite) {
				fmt.Fprintf(&b, "deb [signed-by=%s target=Packages] %s %s main\n", archiveKeyring, uri, suite)
			}
		}
	}
	return b.String()
}

func isSecurity(s string) bool { return strings.HasSuffix(strings.TrimSuffix(s, "/"), "-security") }

func unique(in []string) []string {
	var out []string
	for _, s := range in {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}
