// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ropewalk/ropewalk/test/bench/result"
)

// resultFiles reads and checks all results in dir, by TARGET/NAME, their paths in it without the extension.
func resultFiles(dir string) (map[string]result.Result, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*", "*.json"))
	if err != nil {
		return nil, err
	}
	all, programs := map[string]result.Result{}, map[string]string{}
	for _, path := range paths {
		var r result.Result
		if err := result.Read(path, &r); err != nil {
			return nil, fmt.Errorf("reading %s: %w", path, err)
		}
		if want := filepath.Base(filepath.Dir(path)); r.Target != want {
			return nil, fmt.Errorf("%s is of %q: want it in a directory of that name", path, r.Target)
		}
		if err := r.Check(); err != nil {
			return nil, fmt.Errorf("checking %s: %w", path, err)
		}
		for _, h := range []*result.Host{&r.Under, &r.Other} {
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

// writeResults draws the results beside the predictions, and fills in the tables of the page.
func writeResults(docs string) error {
	var p result.Predictions
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
func resultTable(p *result.Predictions, results map[string]result.Result) string {
	var rows [][]string
	for _, name := range slices.Sorted(maps.Keys(results)) {
		r := results[name]
		for _, w := range r.Rows {
			if w.Implementation != result.Ropewalk {
				continue
			}
			foretold, verdict := "none", ""
			if f := p.Find(r.Target, &w); f != nil {
				foretold, verdict = f.Text(), "inside"
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
