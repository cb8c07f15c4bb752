// SPDX-License-Identifier: Apache-2.0

package term

// Style adds SGR colours to text. The zero Style leaves text unchanged.
type Style struct{ Color bool }

// Bold returns text in bold, for titles.
func (s Style) Bold(text string) string { return s.wrap("1", text) }

// Good returns text in green, for correct states.
func (s Style) Good(text string) string { return s.wrap("32", text) }

// Warn returns text in yellow, for warnings.
func (s Style) Warn(text string) string { return s.wrap("33", text) }

// Bad returns text in bold red, for errors.
func (s Style) Bad(text string) string { return s.wrap("31;1", text) }

// Faint returns text in faint colour, for explanations.
func (s Style) Faint(text string) string { return s.wrap("2", text) }

// Bar returns text in cyan, for bars.
func (s Style) Bar(text string) string { return s.wrap("36", text) }

func (s Style) wrap(code, text string) string {
	if !s.Color {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}
