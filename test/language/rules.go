// SPDX-License-Identifier: Apache-2.0

package language

import (
	"fmt"
	"go/scanner"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Rules are the rejected words and sentence forms.
type Rules struct {
	words       map[string]string // lower case
	names       map[string]string // lower case
	identifiers map[string]string // lower case
	forms       []form
}

type form struct {
	re      *regexp.Regexp
	instead string
}

// Finding is one violation: its text, its line, and the words to use instead.
type Finding struct {
	Line          int
	Text, Instead string
}

// Parse reads rules, one a line: scope, pattern and replacement, separated by tabs. Lines that begin with # are comments.
func Parse(text string) (*Rules, error) {
	r := &Rules{words: map[string]string{}, names: map[string]string{}, identifiers: map[string]string{}}
	for i, line := range strings.Split(text, "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		cells := strings.Split(line, "\t")
		if len(cells) != 3 {
			return nil, fmt.Errorf("line %d: %d cells, want 3", i+1, len(cells))
		}
		switch cells[0] {
		case "word":
			r.words[cells[1]] = cells[2]
		case "name":
			r.names[cells[1]] = cells[2]
		case "identifier":
			r.identifiers[cells[1]] = cells[2]
		case "form":
			re, err := regexp.Compile("(?i)" + cells[1])
			if err != nil {
				return nil, fmt.Errorf("line %d: %w", i+1, err)
			}
			r.forms = append(r.forms, form{re, cells[2]})
		default:
			return nil, fmt.Errorf("line %d: unknown scope %q", i+1, cells[0])
		}
	}
	return r, nil
}

// kind is how a file is read.
type kind int

const (
	other    kind = iota
	markdown      // prose, and names in code
	goFile        // comments, string literals and identifiers
	cFile         // comments and identifiers
	comments      // comments that begin with #
)

// kindOf returns how the file called name is read.
func kindOf(name string) kind {
	base := filepath.Base(name)
	switch filepath.Ext(base) {
	case ".md":
		return markdown
	case ".go":
		if strings.Contains(base, "_bpfel") || strings.HasPrefix(base, "zz_") {
			return other
		}
		return goFile
	case ".c", ".h":
		return cFile
	case ".yml", ".yaml", ".sh", ".awk", ".service", ".mod", ".mk":
		return comments
	}
	if base == "Makefile" || base == "Containerfile" {
		return comments
	}
	return other
}

// Check returns the violations in a file, in the order of its lines.
func (r *Rules) Check(k kind, text []byte) (found []Finding) {
	switch k {
	case markdown:
		found = r.markdown(string(text))
	case goFile:
		found = r.goFile(text)
	case cFile:
		found = r.cFile(string(text))
	case comments:
		for i, line := range strings.Split(string(text), "\n") {
			if _, comment, ok := strings.Cut(line, "#"); ok {
				found = append(found, r.prose(i+1, comment)...)
			}
		}
	}
	slices.SortStableFunc(found, func(a, b Finding) int { return a.Line - b.Line })
	return found
}

// Path returns the violations in the names of a file and its directories.
func (r *Rules) Path(path string) (found []Finding) {
	for _, name := range identifier.FindAllString(path, -1) {
		found = append(found, r.name(1, name)...)
	}
	return found
}

var (
	inlineCode = regexp.MustCompile("`[^`]*`")
	sentence   = regexp.MustCompile(`[.:;!?](\s+|$)`)
	word       = regexp.MustCompile(`[A-Za-z']+`)
	cComment   = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*`)
	identifier = regexp.MustCompile(`[A-Za-z_][A-Za-z0-9_]*`)
	space      = regexp.MustCompile(`[\s*#>]+`)
)

func (r *Rules) markdown(text string) (found []Finding) {
	block := false
	var paragraph []string
	start := 1
	flush := func() {
		found = append(found, r.prose(start, strings.Join(paragraph, "\n"))...)
		paragraph = nil
	}
	code := func(i int, texts ...string) {
		for _, name := range identifier.FindAllString(strings.Join(texts, " "), -1) {
			found = append(found, r.name(i+1, name)...)
		}
	}
	for i, line := range strings.Split(text, "\n") {
		switch trimmed := strings.TrimSpace(line); {
		case strings.HasPrefix(trimmed, "```"):
			flush()
			block = !block
		case block:
			code(i, line)
		case trimmed == "" || strings.HasPrefix(trimmed, "|") || strings.HasPrefix(trimmed, "#"):
			flush()
			code(i, inlineCode.FindAllString(line, -1)...)
			found = append(found, r.prose(i+1, inlineCode.ReplaceAllString(line, "x"))...)
		default:
			if len(paragraph) == 0 {
				start = i + 1
			}
			code(i, inlineCode.FindAllString(line, -1)...)
			paragraph = append(paragraph, inlineCode.ReplaceAllString(line, "x"))
		}
	}
	flush()
	return found
}

func (r *Rules) goFile(text []byte) (found []Finding) {
	fset := token.NewFileSet()
	file := fset.AddFile("", -1, len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, scanner.ScanComments)
	var comment []string
	first, last := 0, 0
	flush := func() {
		found = append(found, r.prose(first, strings.Join(comment, "\n"))...)
		comment = nil
	}
	for {
		pos, tok, lit := s.Scan()
		line := file.Line(pos)
		if tok == token.COMMENT && strings.HasPrefix(lit, "//") && !strings.HasPrefix(lit, "//go:") {
			if line != last+1 {
				flush()
				first = line
			}
			comment, last = append(comment, strings.TrimPrefix(lit, "//")), line
			continue
		}
		switch tok {
		case token.EOF:
			flush()
			return found
		case token.STRING:
			if v, err := strconv.Unquote(lit); err == nil {
				found = append(found, r.prose(line, v)...)
			}
		case token.IDENT:
			found = append(found, r.identifier(line, lit)...)
		}
	}
}

func (r *Rules) cFile(text string) (found []Finding) {
	line := func(offset int) int { return 1 + strings.Count(text[:offset], "\n") }
	code := []byte(text)
	for _, m := range cComment.FindAllStringIndex(text, -1) {
		found = append(found, r.prose(line(m[0]), strings.Trim(text[m[0]:m[1]], "/*"))...)
		for i := m[0]; i < m[1]; i++ {
			if code[i] != '\n' {
				code[i] = ' '
			}
		}
	}
	for _, m := range identifier.FindAllIndex(code, -1) {
		found = append(found, r.identifier(line(m[0]), string(code[m[0]:m[1]]))...)
	}
	return found
}

// prose checks text that begins at a line.
func (r *Rules) prose(line int, text string) (found []Finding) {
	for i, l := range strings.Split(text, "\n") {
		for _, name := range strings.FieldsFunc(l, notInName) {
			if list := parts(name); len(list) > 1 {
				found = append(found, r.name(line+i, name)...)
			}
		}
		for _, w := range word.FindAllString(l, -1) {
			if instead, ok := r.words[strings.ToLower(w)]; ok {
				found = append(found, Finding{line + i, w, instead})
			}
		}
	}
	for _, s := range sentence.Split(text, -1) {
		s = strings.TrimSpace(space.ReplaceAllString(s, " "))
		for _, f := range r.forms {
			if f.re.MatchString(s) && !strings.Contains(text, s+"?") {
				found = append(found, Finding{line, s, f.instead})
			}
		}
	}
	return found
}

// notInName reports whether a character is no part of a name.
func notInName(c rune) bool { return c != '_' && !unicode.IsLetter(c) && !unicode.IsDigit(c) }

// identifier checks an identifier of a program.
func (r *Rules) identifier(line int, name string) []Finding {
	if instead, ok := r.identifiers[strings.ToLower(name)]; ok {
		return []Finding{{line, name, instead}}
	}
	return r.name(line, name)
}

// name checks a name.
func (r *Rules) name(line int, name string) []Finding {
	for _, part := range parts(name) {
		if instead, ok := r.names[part]; ok {
			return []Finding{{line, name, instead}}
		}
	}
	return nil
}

// parts splits an identifier at underscores and before capitals, into lower case.
func parts(name string) (list []string) {
	var b strings.Builder
	flush := func() {
		if b.Len() > 0 {
			list = append(list, strings.ToLower(b.String()))
			b.Reset()
		}
	}
	runes := []rune(name)
	for i, c := range runes {
		if c == '_' {
			flush()
			continue
		}
		if unicode.IsUpper(c) && (i > 0 && !unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])) {
			flush()
		}
		b.WriteRune(c)
	}
	flush()
	return list
}
