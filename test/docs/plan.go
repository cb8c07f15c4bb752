// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"fmt"
	"strings"

	"github.com/ropewalk/ropewalk/test/docs/page"
)

// exception is how blocks are run that have no comment of their own.
type exception struct {
	page   string
	begins string // what the first line begins with; "" for all blocks of the page
	marker string
}

func exceptions() []exception {
	return []exception{
		{"docs/install.md", "", "not run: make test-package runs all of the page, in a systemd of its own"},
		{"docs/quickstart.md", "ropewalk strip", "not run: make test-package does, in a systemd of its own"},
		{"docs/quickstart.md", "systemctl", "not run: make test-package does, in a systemd of its own"},
		{"docs/doctor.md", "ropewalk doctor ", "test: untidy findings"},
		{"docs/spread.md", "ropewalk spread attach", "not run: needs an in-kernel WireGuard; test/spread does the same in virtual machines (make test-kernels)"},
		{"docs/profiling.md", "go build", "not run: takes long where nothing is built yet, and the rooms have no Go"},
		{"docs/profiling.md", "for n in a b", "test: program"},
		{"docs/profiling.md", "ip netns exec prof-b iperf3", "not run: needs perf, iperf3 and inferno, and a quarter of a minute"},
		{"docs/profiling.md", "kill", "test: next"},
		{"docs/profiling.md", "perf stat", "not run: needs perf, and tunnels with traffic"},
	}
}

// run is a list of blocks that are run in one room.
type run struct {
	blocks   []page.Block
	fixture  string
	findings bool
}

// plan says of each block of shell what is done with it. notRun has reasons by the blocks' names.
func plan(pages []*page.Page) (runs []run, notRun map[string]string, err error) {
	notRun = map[string]string{}
	for _, p := range pages {
		open := false // the last run is of this page
		for _, b := range p.Blocks {
			if b.Lang != "sh" && b.Lang != "console" {
				if strings.Contains(b.Marker, "run:") || strings.HasPrefix(b.Marker, "test:") {
					return nil, nil, fmt.Errorf("%s is marked %q, and is no block of sh", b.Name(), b.Marker)
				}
				continue
			}
			kind, text, err := meaning(b)
			switch {
			case err != nil:
				return nil, nil, err
			case kind == "not run":
				notRun[b.Name()] = text
			case text == "next" && !open:
				return nil, nil, fmt.Errorf("%s: no block goes before it", b.Name())
			case text == "next":
				runs[len(runs)-1].blocks = append(runs[len(runs)-1].blocks, b)
			default:
				fixture, findings := strings.CutSuffix(text, " findings")
				runs = append(runs, run{blocks: []page.Block{b}, fixture: fixture, findings: findings})
				open = true
			}
		}
	}
	return runs, notRun, nil
}

// meaning returns what a block's marker, an exception or the rule says: "test" with a fixture, or "not run" with a reason.
func meaning(b page.Block) (kind, text string, err error) {
	marker := b.Marker
	if marker == "" {
		for _, e := range exceptions() {
			if e.page == b.Page && strings.HasPrefix(b.First(), e.begins) {
				marker = e.marker
			}
		}
	}
	if marker == "" {
		return "test", "host", nil
	}
	kind, text, ok := strings.Cut(marker, ": ")
	switch {
	case !ok || kind != "test" && kind != "not run":
		return "", "", fmt.Errorf("%s: %q says neither test nor not run", b.Name(), marker)
	case kind == "not run" && len(strings.Fields(text)) < 3:
		return "", "", fmt.Errorf("%s: %q is no reason", b.Name(), text)
	}
	return kind, text, nil
}

// script is what bash is given.
func (r run) script(fixtures string) string {
	var b strings.Builder
	b.WriteString(fixtures)
	b.WriteString("sudo() { \"$@\"; }\n")
	b.WriteString(r.fixture + "\n")
	if r.findings {
		b.WriteString("ropewalk() { local code=0; command ropewalk \"$@\" || code=$?; case $code in 3 | 4) ;; *) return $code ;; esac; }\n")
	}
	b.WriteString("set -x\n")
	for _, block := range r.blocks {
		for line := range strings.Lines(block.Text) {
			b.WriteString(line)
			if name := started(line); name != "" {
				b.WriteString("served " + name + "\n")
			}
		}
	}
	b.WriteString("set +x\necho done\n")
	return b.String()
}

// started returns the interface whose daemon a line starts in the background, or "": those who type do not go on before it is
// there.
func started(line string) string {
	call, ok := strings.CutSuffix(strings.TrimSpace(line), "&")
	if !ok || !strings.HasPrefix(call, "ropewalk run ") {
		return ""
	}
	words := page.Calls(call, "ropewalk")[0] // without redirections
	return words[len(words)-1]
}
