// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/observe/term"
)

// APIVersion is the version of the report's JSON form. Fields may be added within one version.
const APIVersion = "ropewalk/v1"

// Report holds the findings of all checks.
type Report struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Summary    Summary   `json:"summary"`
	Findings   []Finding `json:"findings"`
}

// Summary counts findings.
type Summary struct {
	OK       int `json:"ok"`
	Warnings int `json:"warnings"`
	Failed   int `json:"failed"`
	Unknown  int `json:"unknown"`
}

// String is "2 checks failed, 1 warning".
func (s Summary) String() string {
	text := term.Count(s.Failed, "check") + " failed, " + term.Count(s.Warnings, "warning")
	if s.Unknown > 0 {
		text += fmt.Sprintf(", %d unknown", s.Unknown)
	}
	return text
}

func (r *Report) count() {
	r.Summary = Summary{}
	for _, f := range r.Findings {
		switch f.Status {
		case OK:
			r.Summary.OK++
		case Warning:
			r.Summary.Warnings++
		case Failed:
			r.Summary.Failed++
		case Unknown:
			r.Summary.Unknown++
		}
	}
}

// Changes returns the changes that Apply would make, each once.
func (r *Report) Changes() []Change {
	var all []Change
	seen := map[Change]bool{}
	for _, f := range r.Findings {
		for _, c := range f.Changes {
			if !seen[c] {
				seen[c] = true
				all = append(all, c)
			}
		}
	}
	return all
}

// WriteJSON writes the report as indented JSON.
func (r *Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(r)
}

// Style selects how a report is printed.
type Style struct {
	Color   bool
	Verbose bool // also prints the reason for OK findings
}

// WriteText writes the report as text.
func (r *Report) WriteText(w io.Writer, s Style) error {
	var b strings.Builder
	var section Section
	for i := range r.Findings {
		f := &r.Findings[i]
		if f.Section != section {
			if section != "" {
				b.WriteByte('\n')
			}
			section = f.Section
			b.WriteString(s.term().Bold(term.Clean(f.heading())) + "\n")
		}
		s.finding(&b, f)
	}
	fmt.Fprintf(&b, "\n%s\n", r.Summary)
	_, err := io.WriteString(w, b.String())
	return err
}

// heading is the line above the findings of a section. A peer's public key is in it, as it is too long to repeat.
func (f *Finding) heading() string {
	if f.Section == SectionPeer {
		return string(f.Section) + " " + f.Subject
	}
	return string(f.Section)
}

// term is the terminal style of the report.
func (s Style) term() term.Style { return term.Style{Color: s.Color} }

// symbol returns the tick, exclamation mark, cross or question mark of a finding.
func (s Style) symbol(status Status) string {
	switch status {
	case OK:
		return s.term().Good("✓")
	case Warning:
		return s.term().Warn("!")
	case Failed:
		return s.term().Bad("✗")
	}
	return s.term().Faint("?")
}

func (s Style) finding(b *strings.Builder, f *Finding) {
	name := f.Check
	if f.Subject != "" && f.Section != SectionPeer {
		name += " " + f.Subject
	}
	fmt.Fprintf(b, "  %s %s: %s\n", s.symbol(f.Status), term.Clean(name), term.Clean(f.Found))
	if s.Verbose || f.Status == Warning || f.Status == Failed {
		fmt.Fprintf(b, "      %s %s\n", s.term().Faint("why:"), term.Clean(f.Why))
	}
	if f.Fix == "" {
		return
	}
	for i, line := range strings.Split(f.Fix, "\n") {
		label := s.term().Faint("fix:")
		if i > 0 {
			label = "    "
		}
		fmt.Fprintf(b, "      %s %s\n", label, term.Clean(line))
	}
}
