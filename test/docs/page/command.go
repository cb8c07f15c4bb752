// SPDX-License-Identifier: Apache-2.0

package page

import (
	"iter"
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// Commands returns the words of each command in a piece of shell, including commands in subshells and substitutions. It skips lines
// that are not valid shell, such as the output of a command.
func Commands(text string) (commands [][]string) {
	read, failed := 1, false // lines parsed so far
	for stmt, err := range syntax.NewParser().StmtsSeq(strings.NewReader(text)) {
		// The parser may report an error twice, which panics if the first one ends the loop.
		if failed = failed || err != nil; failed {
			continue
		}
		read = int(stmt.End().Line())
		syntax.Walk(stmt, func(n syntax.Node) bool {
			if call, ok := n.(*syntax.CallExpr); ok && len(call.Args) > 0 {
				commands = append(commands, words(text, call.Args))
			}
			return true
		})
	}
	if failed {
		return append(commands, Commands(skipLines(text, read))...)
	}
	return commands
}

// skipLines returns text without its first lines.
func skipLines(text string, lines int) string {
	for range lines {
		_, text, _ = strings.Cut(text, "\n")
	}
	return text
}

func words(text string, args []*syntax.Word) (words []string) {
	for _, w := range args {
		words = append(words, unquoted(text, w.Parts))
	}
	return words
}

// unquoted removes quotes as the shell does, but expands nothing.
func unquoted(text string, parts []syntax.WordPart) string {
	var b strings.Builder
	for _, part := range parts {
		switch part := part.(type) {
		case *syntax.Lit:
			b.WriteString(strings.ReplaceAll(part.Value, `\`, ""))
		case *syntax.SglQuoted:
			b.WriteString(part.Value)
		case *syntax.DblQuoted:
			b.WriteString(unquoted(text, part.Parts))
		default:
			b.WriteString(text[part.Pos().Offset():part.End().Offset()])
		}
	}
	return b.String()
}

// Calls yields the calls of the program in blocks and code spans: the line of the block or span, and the arguments.
func (p *Page) Calls(program string) iter.Seq2[int, []string] {
	return func(yield func(int, []string) bool) {
		pieces := slices.Clone(p.Spans)
		for _, b := range p.Blocks {
			pieces = append(pieces, Span{b.Line, b.Text})
		}
		for _, piece := range pieces {
			for _, args := range Calls(piece.Text, program) {
				if !yield(piece.Line, args) {
					return
				}
			}
		}
	}
}

// Calls returns the arguments of each call of the program. The program may have a path and may be called by sudo, exec, env or ip netns
// exec.
func Calls(text, program string) [][]string {
	var calls [][]string
	for _, words := range Commands(text) {
		for i, word := range words {
			if path.Base(word) == program && isLauncher(words[:i]) {
				calls = append(calls, words[i+1:])
				break
			}
		}
	}
	return calls
}

// isLauncher reports whether the word after words is the name of the called program.
func isLauncher(words []string) bool {
	if len(words) == 0 {
		return true
	}
	switch words[0] {
	case "sudo", "exec", "env", "$": // "$" is a prompt
		return true
	case "ip":
		return len(words) == 4 && words[1] == "netns" && words[2] == "exec"
	}
	return false
}
