// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/ropewalk/ropewalk/pkg/control/show"
)

// predictionsDay is the day of docs/results/predictions.json. Results are of a later day, or of the same.
const predictionsDay = "2026-11-30"

// kindResult is the kind of documents in docs/results, whose schema is docs/schemas/HostsResult.json.
const kindResult = "HostsResult"

// hostsResult is a contributor's measurement between two hosts.
type hostsResult struct {
	// Target is a name in docs/dev/predictions.md, or another one for other machines.
	Target string `json:"target"`
	Day    string `json:"day"` // YYYY-MM-DD
	// By is the contributor. Command is the command that measured.
	By      string `json:"by"`
	Command string `json:"command"`
	// Under is the host whose cores are limited, Other the one at the other end.
	Under resultHost  `json:"under"`
	Other resultHost  `json:"other"`
	Rows  []resultRow `json:"rows"`
}

// resultHost describes a host.
type resultHost struct {
	Processor string  `json:"processor"`
	Cores     int     `json:"cores"`
	Microcode string  `json:"microcode"`
	Kernel    string  `json:"kernel"`
	NIC       string  `json:"nic"`
	Driver    string  `json:"driver"`
	Firmware  string  `json:"firmware"`
	Queues    int     `json:"queues"`
	LinkGbps  float64 `json:"link_gbit_per_s"`
	Instance  string  `json:"instance,omitempty"` // a cloud's name of the machine
	// Version, Arch and SHA256 are of the program that ran there.
	Version string `json:"version"`
	Arch    string `json:"arch"`
	SHA256  string `json:"sha256"`
}

// resultRow is one configuration, measured in rounds that alternate with other configurations.
type resultRow struct {
	Implementation string    `json:"implementation"` // one of implementations
	Direction      string    `json:"direction"`
	MTU            int       `json:"mtu"`
	Spread         string    `json:"spread"`
	Cores          int       `json:"cores"`
	Gbps           []float64 `json:"gbit_per_s"` // by round
	BusyCores      []float64 `json:"busy_cores"` // of the host under test, by round
}

const (
	implementationBare     = "bare"
	implementationRopewalk = "ropewalk"
	// minRounds is the least number of rounds, maxNoise the largest ratio between the best and the worst.
	minRounds = 3
	maxNoise  = 3
	// slack is by how much a figure may exceed what is possible: rates and times are not measured at the same moment.
	slack = 1.05
)

func implementations() []string {
	return []string{implementationBare, implementationRopewalk, "kernel", "kernel-spread", "wireguard-go", "tailscale"}
}

// check reports everything that is implausible.
func (r *hostsResult) check() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	day, err := time.Parse(time.DateOnly, r.Day)
	if first, _ := time.Parse(time.DateOnly, predictionsDay); err != nil || day.Before(first) {
		fault("day %q: want a date from %s on", r.Day, predictionsDay)
	}
	if r.Under.Version != r.Other.Version || r.Under.Arch == r.Other.Arch && r.Under.SHA256 != r.Other.SHA256 {
		fault("the hosts ran different programs: %s %s and %s %s", r.Under.Version, r.Under.SHA256, r.Other.Version, r.Other.SHA256)
	}
	for _, h := range []*resultHost{&r.Under, &r.Other} {
		if !regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(h.SHA256) || h.Version == "" || h.Arch == "" {
			fault("program %q %q %q: want version, architecture and SHA-256", h.Version, h.Arch, h.SHA256)
		}
	}
	if !slices.ContainsFunc(r.Rows, func(w resultRow) bool { return w.Implementation == implementationRopewalk }) {
		fault("no row of ropewalk")
	}
	bare := map[string]float64{}
	for _, w := range r.Rows {
		if w.Implementation == implementationBare && len(w.Gbps) > 0 {
			bare[w.path()] = max(bare[w.path()], slices.Max(w.Gbps))
		}
	}
	for i, w := range r.Rows {
		if err := w.check(&r.Under, bare); err != nil {
			fault("row %d (%s, %s, %d cores): %w", i+1, w.Implementation, w.path(), w.Cores, err)
		}
	}
	return errors.Join(faults...)
}

// path names what a row has in common with one of the bare path.
func (w *resultRow) path() string { return fmt.Sprintf("%s, MTU %d", w.Direction, w.MTU) }

func (w *resultRow) check(under *resultHost, bare map[string]float64) error {
	switch {
	case !slices.Contains(implementations(), w.Implementation) || !slices.Contains(directions(), w.Direction) ||
		!slices.Contains([]string{spreadOff, spreadOn, spreadPlanned}, w.Spread):
		return errors.New("unknown implementation, direction or spread")
	case len(w.Gbps) < minRounds || len(w.BusyCores) != len(w.Gbps):
		return fmt.Errorf("%d rounds and %d of busy cores: want at least %d of both", len(w.Gbps), len(w.BusyCores), minRounds)
	case slices.Min(w.Gbps) <= 0:
		return errors.New("a throughput of nothing")
	case slices.Max(w.Gbps) > maxNoise*slices.Min(w.Gbps):
		return fmt.Errorf("rounds from %v to %v Gbit/s: too far from each other for a median", slices.Min(w.Gbps), slices.Max(w.Gbps))
	case w.Cores < 1 || w.Cores > under.Cores:
		return fmt.Errorf("%d cores of a host that has %d", w.Cores, under.Cores)
	case slices.Max(w.BusyCores) > float64(w.Cores)*slack:
		return fmt.Errorf("%v cores busy of %d", slices.Max(w.BusyCores), w.Cores)
	case slices.Max(w.Gbps) > under.LinkGbps*flowPayloadBare(w.MTU)*slack:
		return fmt.Errorf("%v Gbit/s through a link of %v", slices.Max(w.Gbps), under.LinkGbps)
	case w.Implementation == implementationBare:
		return nil
	case bare[w.path()] == 0:
		return errors.New("no row of the bare path to compare with")
	case median(w.Gbps) > bare[w.path()]*slack:
		return fmt.Errorf("%.1f Gbit/s is more than the %.1f of the bare path", median(w.Gbps), bare[w.path()])
	}
	return nil
}

// flowPayloadBare is flowPayload without a tunnel, whose frames are larger than the MTU inside a tunnel.
func flowPayloadBare(mtu int) float64 { return float64(mtu+28) / float64(mtu+80+38) }

// resultFiles reads and checks all results in dir, by TARGET/NAME, their paths in it without the extension.
func resultFiles(dir string) (map[string]hostsResult, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*", "*.json"))
	if err != nil {
		return nil, err
	}
	all, programs := map[string]hostsResult{}, map[string]string{}
	for _, path := range paths {
		var r hostsResult
		if err := readResult(path, &r); err != nil {
			return nil, fmt.Errorf("reading %s: %w", path, err)
		}
		if want := filepath.Base(filepath.Dir(path)); r.Target != want {
			return nil, fmt.Errorf("%s is of %q: want it in a directory of that name", path, r.Target)
		}
		if err := r.check(); err != nil {
			return nil, fmt.Errorf("checking %s: %w", path, err)
		}
		for _, h := range []*resultHost{&r.Under, &r.Other} {
			build := h.Version + " for " + h.Arch
			if known, ok := programs[build]; ok && known != h.SHA256 {
				return nil, fmt.Errorf("%s: program %s is %s, and %s in another result: builds of one version are identical", path, build, h.SHA256, known)
			}
			programs[build] = h.SHA256
		}
		all[r.Target+"/"+strings.TrimSuffix(filepath.Base(path), ".json")] = r
	}
	return all, nil
}

// readResult reads a result. Another kind of document, or unknown fields, are an error.
func readResult(path string, r *hostsResult) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	document := struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		*hostsResult
	}{hostsResult: r}
	if err := d.Decode(&document); err != nil {
		return err
	}
	if document.APIVersion != show.APIVersion || document.Kind != kindResult {
		return fmt.Errorf("a document of %q, kind %q: want %q, kind %q", document.APIVersion, document.Kind, show.APIVersion, kindResult)
	}
	return nil
}

// writeResults draws the results beside the predictions, and fills in the tables of the page.
func writeResults(docs string) error {
	var p predictionFile
	if err := readJSON(filepath.Join(docs, "results", "predictions.json"), &p); err != nil {
		return err
	}
	results, err := resultFiles(filepath.Join(docs, "results"))
	if err != nil {
		return err
	}
	tables := map[string]string{"measured": resultTable(&p, results)}
	for _, t := range targets() {
		tables[t.Name] = t.page(&p)
		svg, err := t.plot(&p, results)
		if err != nil {
			return fmt.Errorf("drawing %s: %w", t.Name, err)
		}
		if err := os.WriteFile(filepath.Join(docs, "dev", "plots", "predicted-"+t.Name+".svg"), svg, 0o644); err != nil {
			return err
		}
	}
	return fillIn(filepath.Join(docs, "dev", "predictions.md"), tables)
}

// resultTable shows the median of each measured row of ropewalk beside its prediction.
func resultTable(p *predictionFile, results map[string]hostsResult) string {
	var rows [][]string
	for _, name := range slices.Sorted(maps.Keys(results)) {
		r := results[name]
		for _, w := range r.Rows {
			if w.Implementation != implementationRopewalk {
				continue
			}
			foretold, verdict := "none", ""
			if f := p.find(r.Target, &w); f != nil {
				foretold, verdict = f.text(), "inside"
				if m := median(w.Gbps); m < f.Low || m > f.High {
					verdict = "**outside**"
				}
			}
			rows = append(rows, []string{
				r.Target, "[" + path.Base(name) + "](../results/" + name + ".json)", r.By, w.Direction, fmt.Sprint(w.MTU), w.Spread, fmt.Sprint(w.Cores),
				foretold, fmt.Sprintf("%.1f", median(w.Gbps)), verdict,
			})
		}
	}
	if rows == nil {
		return "Nobody has measured any of these yet.\n"
	}
	return table([]string{"machines", "result", "by", "direction", "MTU", "spread", "cores", "predicted", "measured", ""}, rows)
}

func (p *predictionFile) find(target string, w *resultRow) *prediction {
	for i, f := range p.Predictions {
		if f.Target == target && f.Direction == w.Direction && f.MTU == w.MTU && f.Spread == w.Spread && f.Cores == w.Cores {
			return &p.Predictions[i]
		}
	}
	return nil
}

// text returns the prediction with its range.
func (f *prediction) text() string {
	short := func(x float64) string {
		if x < 9.95 {
			return fmt.Sprintf("%.1f", x)
		}
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%s (%s–%s)", short(f.Expected), short(f.Low), short(f.High))
}
