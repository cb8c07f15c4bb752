// SPDX-License-Identifier: Apache-2.0

// Package page parses the parts of a documentation page that tests check: code blocks, code spans, headings and links.
package page

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// Page is a Markdown page.
type Page struct {
	Path    string // relative to the repository's root, with slashes
	Blocks  []Block
	Spans   []Span
	Links   []Span   // targets of links and images
	Anchors []string // targets of #fragment, as GitHub derives them from headings
}

// Block is a fenced or indented code block.
type Block struct {
	Page, Heading string
	Line          int    // of the first line of Text
	Lang          string // the info string of the fence
	Marker        string // the content of the HTML comment in the line above, if there is one
	Text          string
}

// Name returns the block's name in test output, PAGE:LINE.
func (b Block) Name() string { return fmt.Sprintf("%s:%d", b.Page, b.Line) }

// First returns the first line that is not empty.
func (b Block) First() string {
	return strings.TrimSpace(strings.SplitN(strings.TrimLeft(b.Text, "\n"), "\n", 2)[0])
}

// Span is a part of a line: a code span or a link target.
type Span struct {
	Line int
	Text string
}

// Root returns the relative path of the repository's root for a package that is depth directories below it.
func Root(depth int) string { return filepath.Join(slices.Repeat([]string{".."}, depth)...) }

// ReadAll reads all pages in the repository's root, in docs/ and in the directories below it.
func ReadAll(root string) ([]*Page, error) {
	var paths []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return nil, err
		}
		paths = append(paths, found...)
	}
	var pages []*Page
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return nil, err
		}
		pages = append(pages, Parse(filepath.ToSlash(name), string(text)))
	}
	return pages, nil
}

// Parse parses a page. It never fails: unknown syntax is plain text.
func Parse(path, text string) *Page {
	r := reader{page: &Page{Path: path}, blank: true, seen: map[string]int{}}
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); {
		i += r.read(lines[i:], i+1)
	}
	return r.page
}

type reader struct {
	page    *Page
	heading string
	marker  string // the HTML comment in the line before
	blank   bool   // the line before was empty
	list    bool   // the line is within a list
	seen    map[string]int
}

// Syntax of one line. A fence may be indented; the closing fence must be identical to the opening one.
var (
	fence   = regexp.MustCompile("^\\s*(```+|~~~+)\\s*([^`]*)$")
	comment = regexp.MustCompile(`^\s*<!--\s*(.*?)\s*-->\s*$`)
	heading = regexp.MustCompile(`^#{1,6}\s+(.*?)\s*#*$`)
	item    = regexp.MustCompile(`^\s*([-*+]|\d+\.)\s`)
	anchor  = regexp.MustCompile(`<a (?:id|name)="([^"]+)"`)
	code    = regexp.MustCompile("(`+)(.+?)`+")
	link    = regexp.MustCompile(`\]\(([^()\s]*(?:\([^()\s]*\)[^()\s]*)*)(?:\s+"[^"]*")?\)`)
)

// read parses the element that begins with the first line, whose number is at. It returns the number of lines consumed.
func (r *reader) read(lines []string, at int) int {
	line := lines[0]
	if m := fence.FindStringSubmatch(line); m != nil {
		return r.fenced(lines, at, m[1], strings.TrimSpace(m[2]))
	}
	if strings.HasPrefix(line, "    ") && r.blank && !r.list {
		return r.indented(lines, at)
	}
	switch {
	case item.MatchString(line):
		r.list = true
	case line != "" && line[0] != ' ':
		r.list = false
	}
	r.marker, r.blank = "", strings.TrimSpace(line) == ""
	if m := comment.FindStringSubmatch(line); m != nil {
		r.marker = m[1]
		return 1
	}
	if m := heading.FindStringSubmatch(line); m != nil {
		r.heading = m[1]
		r.page.Anchors = append(r.page.Anchors, r.anchor(m[1]))
	}
	r.prose(line, at)
	return 1
}

func (r *reader) add(b Block) {
	b.Page, b.Heading, b.Marker = r.page.Path, r.heading, r.marker
	r.page.Blocks = append(r.page.Blocks, b)
	r.marker, r.blank = "", false
}

func (r *reader) fenced(lines []string, at int, mark, lang string) int {
	n := 1
	for n < len(lines) && strings.TrimSpace(lines[n]) != mark {
		n++
	}
	r.add(Block{Line: at + 1, Lang: lang, Text: strings.Join(lines[1:n], "\n") + "\n"})
	return min(n+1, len(lines))
}

func (r *reader) indented(lines []string, at int) int {
	n := 0
	for n < len(lines) && strings.HasPrefix(lines[n], "    ") {
		n++
	}
	var text strings.Builder
	for _, line := range lines[:n] {
		text.WriteString(line[4:] + "\n")
	}
	r.add(Block{Line: at, Text: text.String()})
	return n
}

// prose collects the code spans and links of a line. A link inside a code span is not a link.
func (r *reader) prose(line string, at int) {
	for _, m := range code.FindAllStringSubmatch(line, -1) {
		r.page.Spans = append(r.page.Spans, Span{at, strings.ReplaceAll(m[2], `\|`, "|")})
	}
	for _, m := range anchor.FindAllStringSubmatch(line, -1) {
		r.page.Anchors = append(r.page.Anchors, m[1])
	}
	bare := code.ReplaceAllStringFunc(line, func(s string) string { return strings.Repeat("x", len(s)) })
	for _, m := range link.FindAllStringSubmatch(bare, -1) {
		r.page.Links = append(r.page.Links, Span{at, m[1]})
	}
}

// anchor returns GitHub's anchor of a heading: lower case, hyphens for spaces, no other punctuation, and a number if the anchor is
// not unique.
func (r *reader) anchor(heading string) string {
	text := link.ReplaceAllString(heading, "]")
	var b strings.Builder
	for _, c := range strings.ToLower(text) {
		switch {
		case c == ' ':
			b.WriteRune('-')
		case c == '-' || unicode.In(c, unicode.L, unicode.M, unicode.Nd, unicode.Pc):
			b.WriteRune(c)
		}
	}
	name := b.String()
	n := r.seen[name]
	r.seen[name]++
	if n > 0 {
		return fmt.Sprintf("%s-%d", name, n)
	}
	return name
}
