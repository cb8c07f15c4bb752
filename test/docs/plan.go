// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"fmt"
	"strings"

	"github.com/ropewalk/ropewalk/test/docs/page"
)

// exception is the marker of blocks that have no comment.
type exception struct {
	page   string
	begins string // prefix of the block's first line; "" for all blocks of the page
	marker string
}

func exceptions() []exception {
	return []exception{
		{"docs/install.md", "", "not run: make test-package runs the whole page under a separate systemd"},
		{"docs/quickstart.md", "ropewalk doctor", "not run: make test-package runs it under a separate systemd"},
		{"docs/quickstart.md", "systemctl", "not run: make test-package runs it under a separate systemd"},
		{"docs/doctor.md", "ropewalk doctor ", "test: untidy findings"},
		{"docs/spread.md", "ropewalk spread attach", "not run: needs in-kernel WireGuard; test/spread tests it in virtual machines (make test-kernels)"},
		{"docs/dev/reliability.md", "sudo make attack", "not run: takes some minutes, and the sandbox has no Go"},
		{"docs/dev/profiling.md", "go build", "not run: takes long without a build cache, and the sandbox has no Go"},
		{"docs/dev/profiling.md", "for n in a b", "test: program"},
		{"docs/dev/profiling.md", "ip netns exec prof-b iperf3", "not run: needs perf, iperf3 and inferno, and takes 15 seconds"},
		{"docs/dev/profiling.md", "kill", "test: next"},
		{"docs/dev/profiling.md", "perf stat", "not run: needs perf, and tunnels with traffic"},
	}
}

// run is a list of blocks that run in one sandbox.
type run struct {
	blocks   []page.Block
	fixture  string
	findings bool
}

// plan decides for each shell block whether and how it runs. notRun maps block names to reasons.
func plan(pages []*page.Page) (runs []run, notRun map[string]string, err error) {
	notRun = map[string]string{}
	for _, p := range pages {
		open := false // the last run belongs to this page
		for _, b := range p.Blocks {
			if b.Lang != "sh" && b.Lang != "console" {
				if strings.Contains(b.Marker, "run:") || strings.HasPrefix(b.Marker, "test:") {
					return nil, nil, fmt.Errorf("%s has the marker %q but is not a shell block", b.Name(), b.Marker)
				}
				continue
			}
			kind, text, err := parseMarker(b)
			switch {
			case err != nil:
				return nil, nil, err
			case kind == "not run":
				notRun[b.Name()] = text
			case text == "next" && !open:
				return nil, nil, fmt.Errorf("%s: marker next without a block before it", b.Name())
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

// parseMarker parses a block's marker, or else its exception, or else the default. kind is "test" with a fixture in text, or "not run"
// with a reason.
func parseMarker(b page.Block) (kind, text string, err error) {
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
		return "", "", fmt.Errorf("%s: the marker %q is neither test nor not run", b.Name(), marker)
	case kind == "not run" && len(strings.Fields(text)) < 3:
		return "", "", fmt.Errorf("%s: the reason %q has fewer than three words", b.Name(), text)
	}
	return kind, text, nil
}

// script returns the bash script of the run.
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
			if name := backgroundInterface(line); name != "" {
				b.WriteString("wait_for_daemon " + name + "\n")
			}
		}
	}
	b.WriteString("set +x\necho done\n")
	return b.String()
}

// backgroundInterface returns the interface whose daemon a line starts in the background, or "". The script then waits for the daemon, as a
// user at a terminal does.
func backgroundInterface(line string) string {
	call, ok := strings.CutSuffix(strings.TrimSpace(line), "&")
	if !ok || !strings.HasPrefix(call, "ropewalk run ") {
		return ""
	}
	words := page.Calls(call, "ropewalk")[0] // without redirections
	return words[len(words)-1]
}
