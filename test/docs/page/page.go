// SPDX-License-Identifier: Apache-2.0

// Package page reads what tests look at in a page of the documentation: its blocks of commands, headings and links.
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

// Page is a page in Markdown.
type Page struct {
	Path    string // below the repository's root, with slashes
	Blocks  []Block
	Spans   []Span
	Links   []Span   // their targets; images' too
	Anchors []string // what #fragment may name, as GitHub makes them of headings
}

// Block is a fenced or indented block of code.
type Block struct {
	Page, Heading string
	Line          int    // of the first line of Text
	Lang          string // what stands behind the fence
	Marker        string // the content of the HTML comment in the line above, if there is one
	Text          string
}

// Name is what reports call the block.
func (b Block) Name() string { return fmt.Sprintf("%s:%d", b.Page, b.Line) }

// First is the first line that is not empty.
func (b Block) First() string {
	return strings.TrimSpace(strings.SplitN(strings.TrimLeft(b.Text, "\n"), "\n", 2)[0])
}

// Span is a piece of a line.
type Span struct {
	Line int
	Text string
}

// Root is the repository's, seen from a package dir directories below it.
func Root(depth int) string { return filepath.Join(slices.Repeat([]string{".."}, depth)...) }

// ReadAll reads README.md, the other pages beside it and those of docs/.
func ReadAll(root string) ([]*Page, error) {
	var paths []string
	for _, pattern := range []string{"*.md", "docs/*.md"} {
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

// Parse reads a page. It never fails: what it does not understand is text.
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
	marker  string // of the line before
	blank   bool   // the line before was empty
	list    bool   // since the last line at the margin there was an item of a list
	seen    map[string]int
}

// A block is the same however deep its fence stands, as long as the closing one is as long.
var (
	fence   = regexp.MustCompile("^\\s*(```+|~~~+)\\s*([^`]*)$")
	comment = regexp.MustCompile(`^\s*<!--\s*(.*?)\s*-->\s*$`)
	heading = regexp.MustCompile(`^#{1,6}\s+(.*?)\s*#*$`)
	item    = regexp.MustCompile(`^\s*([-*+]|\d+\.)\s`)
	anchor  = regexp.MustCompile(`<a (?:id|name)="([^"]+)"`)
	code    = regexp.MustCompile("(`+)(.+?)`+")
	link    = regexp.MustCompile(`\]\(([^()\s]*(?:\([^()\s]*\)[^()\s]*)*)(?:\s+"[^"]*")?\)`)
)

// read takes what begins with the first line, whose number is at, and returns how many lines that were.
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

// prose collects the spans and links of a line. What is in a span is no link.
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

// anchor is GitHub's for a heading: in small letters, spaces as hyphens, without other punctuation, and numbered where it
// comes again.
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
