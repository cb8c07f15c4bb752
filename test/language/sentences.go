// SPDX-License-Identifier: Apache-2.0

package language

import (
	"fmt"
	"go/scanner"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// maxWords is the largest number of words in a sentence.
const maxWords = 25

// backReferences are the forms that make a reader look back for a noun.
var backReferences = []form{
	{regexp.MustCompile(`(?i)\b(that|those) of\b`), "the noun or a possessive"},
	{regexp.MustCompile(`(?i)\b(those|the ones?|one) (that|which|whose)\b`), "the noun"},
	{regexp.MustCompile(`(?i), too($|[^ \w]| \()`), "also"},
	{regexp.MustCompile(`(?i)\bso (do|does|did|is|are|has|have)\b`), "the verb"},
	{regexp.MustCompile(`(?i)\b(of|from|to|by|with|for|and|is|are|at|on|than) what\b`), "a noun"},
}

// hasSentences reports whether the sentences of the file called name are checked.
func hasSentences(name string) bool {
	k := kindOf(name)
	return k == markdown && filepath.Base(name) != "CHANGELOG.md" || k == goFile && !strings.HasSuffix(name, "_test.go")
}

// Sentences returns the sentences that are too long or refer back, in the comments of a Go file or
// the prose of a Markdown page. Generated Go files have none.
func Sentences(k kind, text []byte) (found []Finding) {
	var all []paragraph
	switch {
	case k == markdown:
		all = proseOf(string(text))
	case k == goFile && !generated.Match(text):
		all = commentsOf(text)
	}
	for _, p := range all {
		for _, s := range p.sentences() {
			shown := strings.ReplaceAll(s, codeSpace, " ")
			if n := countWords(s); n > maxWords {
				found = append(found, Finding{p.line, shown, fmt.Sprintf("at most %d words, not %d", maxWords, n)})
			}
			for _, f := range backReferences {
				if m := f.re.FindString(s); m != "" {
					found = append(found, Finding{p.line, shown, fmt.Sprintf("%s in place of %q", f.instead, m)})
				}
			}
		}
	}
	return found
}

// paragraph is prose that begins at a line.
type paragraph struct {
	line int
	text string
}

var (
	generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)
	directive = regexp.MustCompile(`^//([a-z]+:| \+[a-z])`) // of the compiler, and markers of controller-gen
	listItem  = regexp.MustCompile(`^\s*([-*]|\d+\.) `)
	quotation = regexp.MustCompile(`^\s*> ?`)
	htmlNote  = regexp.MustCompile(`(?s)<!--.*?-->`)
	link      = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// commentsOf returns the paragraphs of the comments of a Go file. A comment behind code is a
// paragraph of its own.
func commentsOf(text []byte) []paragraph {
	fset := token.NewFileSet()
	file := fset.AddFile("", -1, len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, scanner.ScanComments)
	lines := strings.Split(string(text), "\n")
	var b blocks
	last, lastIndent := 0, ""
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			b.end()
			return b.list
		}
		if tok != token.COMMENT || !strings.HasPrefix(lit, "//") || directive.MatchString(lit) {
			continue
		}
		line := file.Line(pos)
		indent, _, _ := strings.Cut(lines[line-1], "//")
		if alone := strings.TrimSpace(indent) == ""; !alone || line != last+1 || indent != lastIndent {
			b.end()
		}
		last, lastIndent = line, indent
		b.add(line, strings.TrimPrefix(strings.TrimPrefix(lit, "//"), " "))
	}
}

// proseOf returns the paragraphs of a Markdown page, without code, tables and headings.
func proseOf(text string) []paragraph {
	text = htmlNote.ReplaceAllStringFunc(text, func(note string) string { return strings.Repeat("\n", strings.Count(note, "\n")) })
	var b blocks
	code := false
	for i, line := range strings.Split(text, "\n") {
		line = quotation.ReplaceAllString(line, "")
		trimmed := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(trimmed, "```"):
			code = !code
			b.end()
		case code, strings.HasPrefix(trimmed, "|"), strings.HasPrefix(trimmed, "<"):
			b.end()
		default:
			b.add(i+1, line)
		}
	}
	b.end()
	return b.list
}

// blocks collects lines into paragraphs: at blank lines, headings, list items and indented code.
type blocks struct {
	list   []paragraph
	lines  []string
	start  int
	inItem bool
}

func (b *blocks) open() bool { return len(b.lines) > 0 }

func (b *blocks) add(line int, text string) {
	item := listItem.MatchString(text)
	indented := strings.HasPrefix(text, "\t") || strings.HasPrefix(text, "  ")
	switch {
	case strings.TrimSpace(text) == "", strings.HasPrefix(text, "#"), indented && !item && !b.inItem:
		b.end()
		return
	case item:
		b.end()
		b.inItem = true
		text = listItem.ReplaceAllString(text, "")
	}
	if !b.open() {
		b.start = line
	}
	b.lines = append(b.lines, text)
}

func (b *blocks) end() {
	if b.open() {
		b.list = append(b.list, paragraph{b.start, strings.Join(b.lines, " ")})
	}
	b.lines, b.inItem = nil, false
}

// codeSpace stands for a space in code, which is one word.
const codeSpace = "\x00"

// sentences returns the paragraph's sentences. A colon or semicolon ends a sentence if a capital or
// code follows. Of links only the text counts.
func (p paragraph) sentences() (list []string) {
	text := inlineCode.ReplaceAllStringFunc(link.ReplaceAllString(p.text, "$1"), func(code string) string {
		return strings.Join(strings.Fields(code), codeSpace)
	})
	words, begin := strings.Fields(text), 0
	for i, w := range words {
		if i+1 == len(words) || endsSentence(w, words[i+1]) {
			list = append(list, strings.Join(words[begin:i+1], " "))
			begin = i + 1
		}
	}
	return list
}

// endsSentence reports whether a sentence ends with the word w in front of the word next.
func endsSentence(w, next string) bool {
	w = strings.TrimRight(w, `)"'*_`+"`")
	switch {
	case w == "":
		return false
	case strings.ContainsAny(w[len(w)-1:], ".!?"):
		return !slices.Contains([]string{"e.g.", "i.e.", "cf.", "vs."}, strings.TrimLeft(w, "("))
	case strings.ContainsAny(w[len(w)-1:], ":;"):
		return strings.ContainsAny(next[:1], "ABCDEFGHIJKLMNOPQRSTUVWXYZ`*")
	}
	return false
}

// countWords counts the words of a sentence that have a letter.
func countWords(s string) (n int) {
	for _, w := range strings.Fields(s) {
		if strings.ContainsFunc(w, unicode.IsLetter) {
			n++
		}
	}
	return n
}
