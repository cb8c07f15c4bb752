// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// parseDOT checks a text against the part of Graphviz' grammar that WriteDOT uses.
func parseDOT(text string) error {
	token := regexp.MustCompile(`^(--|[{}\[\];,=]|"(?:[^"\\\n]|\\[^\n])*"|[A-Za-z_][A-Za-z0-9_]*|-?[0-9.]+)`)
	var tokens []string
	for text = strings.TrimSpace(text); text != ""; text = strings.TrimSpace(text) {
		t := token.FindString(text)
		if t == "" {
			return fmt.Errorf("no token: %.40q", text)
		}
		tokens, text = append(tokens, t), text[len(t):]
	}
	p := &dotParser{tokens: tokens}
	p.want("graph")
	p.id()
	p.want("{")
	for p.err == nil && p.next() != "}" {
		p.id()
		if p.next() == "--" {
			p.want("--")
			p.id()
		}
		p.attributes()
		p.want(";")
	}
	p.want("}")
	if p.err == nil && len(p.tokens) > 0 {
		p.err = fmt.Errorf("%v after the end", p.tokens)
	}
	return p.err
}

type dotParser struct {
	tokens []string
	err    error
}

func (p *dotParser) next() string {
	if len(p.tokens) == 0 {
		return ""
	}
	return p.tokens[0]
}

func (p *dotParser) want(t string) {
	if p.err == nil && p.next() != t {
		p.err = fmt.Errorf("got %q, want %q", p.next(), t)
	}
	p.tokens = p.tokens[min(1, len(p.tokens)):]
}

func (p *dotParser) id() {
	if slices.Contains([]string{"", "{", "}", "[", "]", ";", ",", "=", "--"}, p.next()) && p.err == nil {
		p.err = fmt.Errorf("got %q, want an ID", p.next())
	}
	p.tokens = p.tokens[min(1, len(p.tokens)):]
}

func (p *dotParser) attributes() {
	p.want("[")
	for p.err == nil {
		p.id()
		p.want("=")
		p.id()
		if p.next() != "," {
			break
		}
		p.want(",")
	}
	p.want("]")
}
