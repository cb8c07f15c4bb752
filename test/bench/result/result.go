// SPDX-License-Identifier: Apache-2.0

// Package result holds the documents in docs/results: measurements between two hosts, and the
// predictions for them.
package result

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"time"

	"github.com/ropewalk/ropewalk/pkg/control/show"
)

// firstDay is the day of docs/results/predictions.json. Results are of a later day, or of the same.
const firstDay = "2026-11-30"

// Kind is the kind of documents in docs/results, whose schema is docs/schemas/HostsResult.json.
const Kind = "HostsResult"

// Result is a contributor's measurement between two hosts.
type Result struct {
	// Target is a name in docs/dev/predictions.md, or another one for other machines.
	Target string `json:"target"`
	Day    string `json:"day"` // YYYY-MM-DD
	// By is the contributor. Command is the command that measured.
	By      string `json:"by"`
	Command string `json:"command"`
	// Under is the host whose cores are limited, Other the one at the other end.
	Under Host  `json:"under"`
	Other Host  `json:"other"`
	Rows  []Row `json:"rows"`
	// Figures are everything else that was measured, and the rows' figures again.
	Figures []Figure `json:"figures,omitempty"`
	// Failures are measurements without a figure, with the reason.
	Failures []string `json:"failures,omitempty"`
}

// Host describes a host.
type Host struct {
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

	MTU      int               `json:"mtu,omitempty"` // of the NIC, in bytes
	RSS      string            `json:"rss,omitempty"` // how the NIC selects the receive queue
	Offloads map[string]bool   `json:"offloads,omitempty"`
	Sysctls  map[string]string `json:"sysctls,omitempty"`
	Doctor   []string          `json:"doctor,omitempty"` // checks of `ropewalk doctor` that failed or warned
}

// Row is one configuration, measured in rounds that alternate with other configurations.
type Row struct {
	Implementation string    `json:"implementation"` // one of Implementations
	Direction      string    `json:"direction"`
	MTU            int       `json:"mtu"`
	Spread         string    `json:"spread"`
	Underlay       string    `json:"underlay,omitempty"` // xdp, or nothing for UDP sockets
	Cores          int       `json:"cores"`
	Gbps           []float64 `json:"gbit_per_s"` // by round
	BusyCores      []float64 `json:"busy_cores"` // of the host under test, by round
}

// Figure is one figure of one configuration.
type Figure struct {
	// Configuration names implementation, spread and underlay, such as "ropewalk, spread on".
	Configuration string    `json:"configuration"`
	MTU           int       `json:"mtu"`
	Cores         int       `json:"cores"`
	Test          string    `json:"test"`
	What          string    `json:"what"`
	Unit          string    `json:"unit"`
	Less          bool      `json:"less_is_better,omitempty"`
	Values        []float64 `json:"values"` // by round
}

// Implementations that others are compared with.
const (
	Bare     = "bare" // the path without a tunnel
	Ropewalk = "ropewalk"
)

// Directions are as seen from the host under test: it sends, or it receives.
const (
	Encrypt = "encrypt"
	Decrypt = "decrypt"
)

// Directions returns all directions.
func Directions() []string { return []string{Encrypt, Decrypt} }

// How ropewalk spreads: SpreadPlanned is SpreadOn with a port plan of the receiver.
const (
	SpreadOff     = "off"
	SpreadOn      = "on"
	SpreadPlanned = "planned"
)

const (
	// minRounds is the least number of rounds, maxNoise the largest ratio between the best and the worst.
	minRounds = 3
	maxNoise  = 3
	// slack is by how much a figure may exceed what is possible: rates and times are not measured at the same moment.
	slack = 1.05
)

// Implementations returns the implementations that may have rows. The ones with "-spread" are behind `ropewalk spread attach`.
func Implementations() []string {
	return []string{Bare, Ropewalk, "kernel", "kernel-spread", "wireguard-go", "wireguard-go-spread", "tailscale"}
}

// Check reports everything that is implausible.
func (r *Result) Check() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	day, err := time.Parse(time.DateOnly, r.Day)
	if first, _ := time.Parse(time.DateOnly, firstDay); err != nil || day.Before(first) {
		fault("day %q: want a date from %s on", r.Day, firstDay)
	}
	if r.Under.Version != r.Other.Version || r.Under.Arch == r.Other.Arch && r.Under.SHA256 != r.Other.SHA256 {
		fault("the hosts ran different programs: %s %s and %s %s", r.Under.Version, r.Under.SHA256, r.Other.Version, r.Other.SHA256)
	}
	for _, h := range []*Host{&r.Under, &r.Other} {
		if !regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(h.SHA256) || h.Version == "" || h.Arch == "" {
			fault("program %q %q %q: want version, architecture and SHA-256", h.Version, h.Arch, h.SHA256)
		}
	}
	if !slices.ContainsFunc(r.Rows, func(w Row) bool { return w.Implementation == Ropewalk }) {
		fault("no row of ropewalk")
	}
	bare := map[string]float64{}
	for _, w := range r.Rows {
		if w.Implementation == Bare && len(w.Gbps) > 0 {
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
func (w *Row) path() string { return fmt.Sprintf("%s, MTU %d", w.Direction, w.MTU) }

func (w *Row) check(under *Host, bare map[string]float64) error {
	switch {
	case !slices.Contains(Implementations(), w.Implementation) || !slices.Contains(Directions(), w.Direction) ||
		!slices.Contains([]string{SpreadOff, SpreadOn, SpreadPlanned}, w.Spread):
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
	case w.Implementation == Bare:
		return nil
	case bare[w.path()] == 0:
		return errors.New("no row of the bare path to compare with")
	case Median(w.Gbps) > bare[w.path()]*slack:
		return fmt.Errorf("%.1f Gbit/s is more than the %.1f of the bare path", Median(w.Gbps), bare[w.path()])
	}
	return nil
}

// flowPayloadBare is flowPayload without a tunnel, whose frames are larger than the MTU inside a tunnel.
func flowPayloadBare(mtu int) float64 { return float64(mtu+28) / float64(mtu+80+38) }

// Read reads a result. Another kind of document, or unknown fields, are an error.
func Read(path string, r *Result) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	got := document{Result: r}
	if err := d.Decode(&got); err != nil {
		return err
	}
	if got.APIVersion != show.APIVersion || got.Kind != Kind {
		return fmt.Errorf("a document of %q, kind %q: want %q, kind %q", got.APIVersion, got.Kind, show.APIVersion, Kind)
	}
	return nil
}

// document is a Result as a file has it.
type document struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	*Result
}

// JSON returns the document for a file.
func (r *Result) JSON() ([]byte, error) {
	text, err := json.MarshalIndent(document{show.APIVersion, Kind, r}, "", "  ")
	return append(text, '\n'), err
}

// Prediction is the expected throughput of one configuration, in Gbit/s of TCP's payload.
type Prediction struct {
	Target    string  `json:"target"`
	Direction string  `json:"direction"`
	MTU       int     `json:"mtu"`
	Spread    string  `json:"spread"`
	Cores     int     `json:"cores"`
	Low       float64 `json:"low"`
	Expected  float64 `json:"expected"`
	High      float64 `json:"high"`
	Limit     string  `json:"limit"` // the busiest resource in the expected case
}

// Predictions is the file that `scale predict` writes.
type Predictions struct {
	Command string `json:"command"`
	Costs   string `json:"costs"`
	// ModelError is the largest difference between model and measurement in docs/dev/model.md, as a share. It widens each range.
	ModelError  float64      `json:"model_error"`
	Predictions []Prediction `json:"predictions"`
}

// Find returns the prediction for a row, nil if there is none.
func (p *Predictions) Find(target string, w *Row) *Prediction {
	for i, f := range p.Predictions {
		if f.Target == target && f.Direction == w.Direction && f.MTU == w.MTU && f.Spread == w.Spread && f.Cores == w.Cores && w.Implementation == Ropewalk && w.Underlay == "" {
			return &p.Predictions[i]
		}
	}
	return nil
}

// Text returns the prediction with its range.
func (f *Prediction) Text() string {
	short := func(x float64) string {
		if x < 9.95 {
			return fmt.Sprintf("%.1f", x)
		}
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%s (%s–%s)", short(f.Expected), short(f.Low), short(f.High))
}

// Median is the middle value, or the mean of the two in the middle; 0 of nothing. It leaves v as it is.
func Median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}
