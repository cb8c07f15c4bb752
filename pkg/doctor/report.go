// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/picture"
)

// APIVersion is that of the report's JSON form. Fields may be added within one version.
const APIVersion = "ropewalk/v1"

// Report is what all checks found.
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
	text := plural(s.Failed, "check") + " failed, " + plural(s.Warnings, "warning")
	if s.Unknown > 0 {
		text += fmt.Sprintf(", %d could not be told", s.Unknown)
	}
	return text
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func newReport() Report {
	return Report{APIVersion: APIVersion, Kind: "DoctorReport", Findings: []Finding{}}
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

// Changes are what Treat would do, each once.
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

// Style is how a report looks.
type Style struct {
	Color   bool
	Verbose bool // says of what is well why it matters, too
}

// WriteText writes the report for people.
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
			b.WriteString(s.ink().Bold(string(section)) + "\n")
		}
		s.finding(&b, f)
	}
	fmt.Fprintf(&b, "\n%s\n", r.Summary)
	_, err := io.WriteString(w, b.String())
	return err
}

// ink is what the report is drawn with.
func (s Style) ink() picture.Style { return picture.Style{Color: s.Color} }

// The marks of findings: tick, warning, cross.
func (s Style) mark(status Status) string {
	switch status {
	case OK:
		return s.ink().Good("✓")
	case Warning:
		return s.ink().Doubtful("!")
	case Failed:
		return s.ink().Bad("✗")
	}
	return s.ink().Faint("?")
}

func (s Style) finding(b *strings.Builder, f *Finding) {
	name := f.Check
	if f.Subject != "" {
		name += " " + f.Subject
	}
	fmt.Fprintf(b, "  %s %s: %s\n", s.mark(f.Status), clean(name), clean(f.Found))
	if s.Verbose || f.Status == Warning || f.Status == Failed {
		fmt.Fprintf(b, "      %s %s\n", s.ink().Faint("why:"), clean(f.Why))
	}
	if f.Mend == "" {
		return
	}
	for i, line := range strings.Split(f.Mend, "\n") {
		label := s.ink().Faint("mend:")
		if i > 0 {
			label = "     "
		}
		fmt.Fprintf(b, "      %s %s\n", label, clean(line))
	}
}

// clean keeps from the terminal what names of devices and programs may have that it would act on.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if strconv.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
}
