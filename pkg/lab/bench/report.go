// SPDX-License-Identifier: Apache-2.0

package bench

// Schema is the version of Report's JSON. Names and units of figures do not change within one.
const Schema = 1

// The stages, in their order.
const (
	StageCrypto   = "crypto"
	StageTUN      = "tun"
	StageUnderlay = "underlay"
	StageRaw      = "raw"
	StageTunnel   = "tunnel"
)

// Stages are all stages, in their order.
func Stages() []string {
	return []string{StageCrypto, StageTUN, StageUnderlay, StageRaw, StageTunnel}
}

// Report holds the figures of a machine.
type Report struct {
	Schema  int      `json:"schema"`
	Command string   `json:"command,omitempty"`
	Version string   `json:"version,omitempty"`
	Machine Machine  `json:"machine"`
	Seconds float64  `json:"seconds"` // of each stretch of traffic
	Figures []Figure `json:"figures"`
	Verdict *Verdict `json:"verdict,omitempty"` // nil without a tunnel's throughput
}

// Machine is the measured machine.
type Machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"` // usable by this process
	Kernel string `json:"kernel"`
	Arch   string `json:"arch"`
	// Busy is how busy the processors were with other things before anything was measured, in percent.
	Busy float64 `json:"busy_percent"`
}

// Figure is one result. Stage, Name, Lanes and Streams together are unique.
type Figure struct {
	Stage   string             `json:"stage"`
	Name    string             `json:"name"`
	What    string             `json:"what"` // for people
	Unit    string             `json:"unit"`
	Lanes   int                `json:"lanes,omitempty"`
	Streams int                `json:"streams,omitempty"`
	Value   float64            `json:"value"`
	More    map[string]float64 `json:"more,omitempty"` // companions, by name with unit
	Error   string             `json:"error,omitempty"`
}

// Find returns the first figure of a stage with that name that was measured; nil if there is none.
func (r *Report) Find(stage, name string) *Figure {
	for i := range r.Figures {
		if f := &r.Figures[i]; f.Stage == stage && f.Name == name && f.Error == "" {
			return f
		}
	}
	return nil
}

// value returns the value of a figure, or 0.
func (r *Report) value(stage, name string) float64 {
	if f := r.Find(stage, name); f != nil {
		return f.Value
	}
	return 0
}
