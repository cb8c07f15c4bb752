// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// Settings are the settings of a Device that WireGuard does not have. A nil field is not given.
// The names in JSON are part of the handover between daemons.
type Settings struct {
	Spread         *SpreadMode   `json:"spread"`
	SpreadPorts    *spread.Ports `json:"spread_ports"` // the source ports to spread over; see CheckPorts
	Spray          *Spray        `json:"spray"`
	Underlay       *UnderlayMode `json:"underlay"`
	OuterFragments *OnOff        `json:"outer_fragments"`
	PostQuantum    *PostQuantum  `json:"post_quantum,omitempty"`
}

// Table returns all Settings in the order of their documentation. Files, flags, the control socket, completion and documentation
// read the table. A change of any of them takes effect while the tunnel runs.
func Table() []Setting {
	return []Setting{
		setting(Setting{
			Name: "Spread", Form: "auto|off|on", Want: `"auto", "off" or "on"`,
			About: "Whether inner flows have source ports of their own: `auto` towards peers that announce gather, `off` towards none, `on` towards all. " +
				"[Spread](spread.md).",
		}, ParseSpreadMode, SpreadAuto, func(s *Settings) **SpreadMode { return &s.Spread }),
		setting(Setting{
			Name: "SpreadPorts", Form: "FIRST-LAST", Want: fmt.Sprintf("two ports from %d on, such as %v", MinSpreadPort, spread.DefaultPorts),
			Values: "`first-last`, from " + strconv.Itoa(MinSpreadPort) + " on",
			About:  "Source ports to spread over, without the `ListenPort`.",
		}, ParsePorts, spread.DefaultPorts, func(s *Settings) **spread.Ports { return &s.SpreadPorts }),
		setting(Setting{
			Name: "Spray", Form: "off|auto|N", Want: fmt.Sprintf(`"off", "auto" or a number from %d to %d`, MinSpray, MaxSpray),
			Values: fmt.Sprintf("`off`, `auto`, %d–%d", MinSpray, MaxSpray),
			About:  "Source ports over which one large flow is sprayed, towards peers with the same setting. [Spray](spread.md#spray).",
		}, ParseSpray, SprayOff, func(s *Settings) **Spray { return &s.Spray }),
		setting(Setting{
			Name: "Underlay", Form: "auto|udp|xdp", Want: `"auto", "udp" or "xdp"`,
			About: "Sockets for data messages: `udp`, `xdp` for AF_XDP where the device supports it, `auto` for AF_XDP where `ropewalk bench underlay` found it better. " +
				"[Underlay](underlay.md).",
		}, ParseUnderlayMode, UnderlayAuto, func(s *Settings) **UnderlayMode { return &s.Underlay }),
		setting(Setting{
			Name: "OuterFragments", Form: "off|on", Want: `"on" or "off"`,
			About: "Whether messages that exceed the path MTU may leave in fragments. `off` fits inner packets to the path. [Path MTU](underlay.md#path-mtu).",
		}, ParseOnOff, false, func(s *Settings) **OnOff { return &s.OuterFragments }),
		setting(Setting{
			Name: "PostQuantum", Form: "auto|off|required", Want: WantPostQuantum,
			About: "Whether sessions use keys of post-quantum exchanges: `auto` with peers that take part, `required`: no data without. " +
				"[Post-quantum](security.md#post-quantum-keys).",
		}, ParsePostQuantum, DefaultPostQuantum, func(s *Settings) **PostQuantum { return &s.PostQuantum }),
	}
}

// Setting is a row of the Table.
type Setting struct {
	Name    string // in [Interface] of a file, such as SpreadPorts; Key and Flag are made of it
	Form    string // its values in a usage line, such as auto|off|on
	Want    string // its values in an error
	Values  string // its values in the documentation, in Markdown; empty: the words of Form
	Default string // the value of a device for which it was never given
	About   string // one line of documentation, in Markdown

	set  func(*Settings, string) error
	text func(*Settings) (string, bool)
	fill func(to, from *Settings)
}

// setting completes a row with the functions for its field.
func setting[T fmt.Stringer](s Setting, parse func(string) (T, error), byDefault T, field func(*Settings) **T) Setting {
	s.Default = byDefault.String()
	if s.Values == "" {
		s.Values = "`" + strings.ReplaceAll(s.Form, "|", "`, `") + "`"
	}
	s.set = func(to *Settings, text string) error {
		v, err := parse(text)
		if err == nil {
			*field(to) = &v
		}
		return err
	}
	s.text = func(from *Settings) (string, bool) {
		v := *field(from)
		if v == nil {
			return "", false
		}
		return (*v).String(), true
	}
	s.fill = func(to, from *Settings) {
		if *field(to) == nil {
			*field(to) = *field(from)
		}
	}
	return s
}

// Set stores the value of a text. The error does not quote the text.
func (s *Setting) Set(to *Settings, text string) error { return s.set(to, text) }

// Text returns the value as Set reads it, and whether it is given.
func (s *Setting) Text(from *Settings) (text string, given bool) { return s.text(from) }

// Words returns the values that are words, for completion.
func (s *Setting) Words() (words []string) {
	for word := range strings.SplitSeq(s.Form, "|") {
		if word == strings.ToLower(word) {
			words = append(words, word)
		}
	}
	return words
}

// Key returns the name on the control socket, such as spread_ports.
func (s *Setting) Key() string { return s.separated('_') }

// Flag returns the name as a flag of `run` and as a keyword of `set`, such as spread-ports.
func (s *Setting) Flag() string { return s.separated('-') }

func (s *Setting) separated(by rune) string {
	var b strings.Builder
	for i, r := range s.Name {
		if i > 0 && unicode.IsUpper(r) {
			b.WriteRune(by)
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// Fill stores the values of other that s does not have.
func (s *Settings) Fill(other *Settings) {
	for _, row := range Table() {
		row.fill(s, other)
	}
}

// Texts returns the values that are given, by their Name.
func (s *Settings) Texts() map[string]string {
	texts := map[string]string{}
	for _, row := range Table() {
		if text, given := row.Text(s); given {
			texts[row.Name] = text
		}
	}
	return texts
}
