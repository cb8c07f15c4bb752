// SPDX-License-Identifier: Apache-2.0

// Package picture has what commands draw on a terminal with: colours, bars and figures.
package picture

// Style turns text into its coloured form, or leaves it. The zero Style leaves it.
type Style struct{ Color bool }

// Bold is for titles.
func (s Style) Bold(text string) string { return s.wrap("1", text) }

// Good is for what is as it should be.
func (s Style) Good(text string) string { return s.wrap("32", text) }

// Doubtful is for what may be better.
func (s Style) Doubtful(text string) string { return s.wrap("33", text) }

// Bad is for what is not as it should be.
func (s Style) Bad(text string) string { return s.wrap("31;1", text) }

// Faint is for explanations.
func (s Style) Faint(text string) string { return s.wrap("2", text) }

// Bar is for bars.
func (s Style) Bar(text string) string { return s.wrap("36", text) }

func (s Style) wrap(code, text string) string {
	if !s.Color {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}
