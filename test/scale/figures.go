// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"gonum.org/v1/plot/plotter"

	"github.com/ropewalk/ropewalk/test/scale/chart"
	"github.com/ropewalk/ropewalk/test/scale/model"
)

const (
	manyFlows = 64
	// settleTime is the time after which the queues of one core are full.
	settleTime  = 120 * time.Millisecond
	plotCommand = "make scale"
	// utilizationCores is the number of cores in the chart of utilization, miceCores that in the table of short flows.
	utilizationCores = 64
	miceCores        = 16
)

// figures holds all results that docs/dev/model.md shows.
type figures struct {
	costs costFile
	check checkFile

	many     map[string]map[int]summary // 64 flows: by strategy and number of cores
	few      map[string]map[int]summary // as many flows as cores
	elephant map[string]map[int]summary // one flow: by strategy of help and number of cores
	mice     map[string]map[int]summary // short flows: by strategy and offered Gbit/s
	stock    map[string]map[int]summary // 16 flows from one port: by strategy of help and number of cores
	usl      map[string]model.USL       // fitted to many, by strategy
}

// helpStrategies are the ways in which idle cores may help one flow.
func (f *figures) helpStrategies() []strategy {
	return []strategy{
		{"alone", func(*model.Config) {}},
		{"idle cores seal and open its trains", func(c *model.Config) { c.Help = true }},
		{"they also receive and split them", func(c *model.Config) { c.Help, c.HelpReceive = true, true }},
		{"idle cores take whole trains in turn", func(c *model.Config) {
			// The core that processes a train has also read it, so that only waking the next core remains.
			c.Help, c.HelpSplitMerge, c.HandOff, c.HandBack = true, true, f.costs.HandOff.Wake, 0
		}},
	}
}

// stockFlows is the number of inner flows of a peer that sends from one port.
const stockFlows = 16

// stockStrategies are the ways in which idle cores may help a receive lane that has all traffic of a peer.
func stockStrategies() []strategy {
	open := func(workers int) func(*model.Config) {
		return func(c *model.Config) { c.Help, c.HelpReceive, c.Workers = true, true, workers }
	}
	write := func(workers int) func(*model.Config) {
		return func(c *model.Config) { open(workers)(c); c.HelpWrite = true }
	}
	return []strategy{
		{"alone", func(*model.Config) {}},
		{"two workers receive and open", open(2)},
		{"three", open(3)},
		{"four", open(4)},
		{"two, and the lanes of the inner flows write", write(2)},
		{"three, and they write", write(3)},
		{"four, and they write", write(4)},
	}
}

// simulate runs all simulations.
func (f *figures) simulate(progress io.Writer) (err error) {
	f.usl = map[string]model.USL{}
	if f.many, err = f.sweep(strategies(), "64 flows", progress, func(int) int { return manyFlows }); err != nil {
		return err
	}
	if f.few, err = f.sweep(strategies(), "a flow per core", progress, func(cores int) int { return cores }); err != nil {
		return err
	}
	if f.elephant, err = f.sweep(f.helpStrategies(), "one flow", progress, func(int) int { return 1 }); err != nil {
		return err
	}
	if f.stock, err = f.sweep(stockStrategies(), "16 flows from one port", progress, func(int) int { return stockFlows }); err != nil {
		return err
	}
	for _, w := range strategies() {
		f.usl[w.name] = fitUSL(f.many[w.name])
	}
	return f.shortFlows(progress)
}

// sweep simulates every strategy on all numbers of cores.
func (f *figures) sweep(list []strategy, what string, progress io.Writer, flows func(cores int) int) (map[string]map[int]summary, error) {
	all := map[string]map[int]summary{}
	for _, w := range list {
		fmt.Fprintf(progress, "%s, %s\n", what, w.name)
		all[w.name] = map[int]summary{}
		for _, cores := range append([]int{1}, coreCounts()...) {
			c := f.costs.config()
			c.Cores, c.Elephants, c.Window = cores, flows(cores), flowTrains(flows(cores))*f.costs.Train.Bytes
			c.Warmup += settleTime / time.Duration(cores)
			w.config(&c)
			s, err := average(c)
			if err != nil {
				return nil, err
			}
			all[w.name][cores] = s
		}
	}
	return all, nil
}

// offered returns the loads of short flows, in Gbit/s.
func offered() []int { return []int{5, 10, 20, 30} }

// shortFlows simulates short flows, with congestion control and bounded queues.
func (f *figures) shortFlows(progress io.Writer) error {
	f.mice = map[string]map[int]summary{}
	for _, w := range strategies() {
		fmt.Fprintf(progress, "short flows, %s\n", w.name)
		f.mice[w.name] = map[int]summary{}
		for _, rate := range offered() {
			c := f.costs.config()
			c.Cores, c.ClosedLoop, c.Mice = miceCores, false, float64(rate)*1e9/8
			w.config(&c)
			s, err := average(c)
			if err != nil {
				return err
			}
			f.mice[w.name][rate] = s
		}
	}
	return nil
}

// flowTrains returns the number of trains that each flow has in flight: enough for all stages.
func flowTrains(flows int) int { return max(4, 48/flows) }

// fitUSL fits the universal scalability law.
func fitUSL(by map[int]summary) model.USL {
	var work []float64
	cores := append([]int{1}, coreCounts()...)
	for _, n := range cores {
		work = append(work, by[n].gbps)
	}
	return model.FitUSL(cores, work)
}

// write simulates, draws the charts, and updates the document.
func (f *figures) write(docs string, progress io.Writer) error {
	if err := f.simulate(progress); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(docs, "plots"), 0o755); err != nil {
		return err
	}
	for name, draw := range map[string]func() ([]byte, error){
		"many": f.manyPlot, "few": f.fewPlot, "elephant": f.elephantPlot, "use": f.usePlot, "bounds": f.boundsPlot,
	} {
		svg, err := draw()
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(docs, "plots", "scale-"+name+".svg"), svg, 0o644); err != nil {
			return err
		}
	}
	tables, err := f.tables()
	if err != nil {
		return err
	}
	return fillIn(filepath.Join(docs, "model.md"), tables)
}

func cores() chart.Axis { return chart.Axis{Label: "Cores of each machine", Log: true} }

// series returns one line of a chart over the number of cores.
func series(name string, by map[int]summary, value func(s summary) float64) chart.Series {
	s := chart.Series{Name: name}
	for _, n := range coreCounts() {
		s.Points = append(s.Points, plotter.XY{X: float64(n), Y: value(by[n])})
	}
	return s
}

func gbps(s summary) float64 { return s.gbps }

func (f *figures) manyPlot() ([]byte, error) {
	var lines []chart.Series
	for _, w := range strategies() {
		lines = append(lines, series(w.name, f.many[w.name], gbps))
	}
	return chart.Line(chart.Chart{
		Title: fmt.Sprintf("Throughput of a tunnel, %d flows", manyFlows),
		Note: "Simulated with stage costs measured on two cores: two machines, a lane and a NIC queue per core, no limit of " +
			"the wire. Lines are ways to take source ports.",
		Command: plotCommand,
	}, cores(), chart.Axis{Label: "Gbit/s received by applications", Log: true}, lines...)
}

func (f *figures) fewPlot() ([]byte, error) {
	var lines []chart.Series
	for _, w := range strategies() {
		s := series(w.name, f.few[w.name], gbps)
		for i := range s.Points {
			s.Points[i].Y /= s.Points[i].X
		}
		lines = append(lines, s)
	}
	return chart.Line(chart.Chart{
		Title:   "What each core carries, as many flows as cores",
		Note:    "Simulated as before. With a flow for each core, every hash that two flows meet at leaves a core without work.",
		Command: plotCommand,
	}, cores(), chart.Axis{Label: "Gbit/s per core of one machine"}, lines...)
}

func (f *figures) elephantPlot() ([]byte, error) {
	var lines []chart.Series
	for _, w := range f.helpStrategies() {
		lines = append(lines, series(w.name, f.elephant[w.name], gbps))
	}
	return chart.Line(chart.Chart{
		Title:   "Throughput of one flow",
		Note:    "Simulated. One flow is one lane; the lines are ways in which idle cores may help it.",
		Command: plotCommand,
	}, cores(), chart.Axis{Label: "Gbit/s received by the application"}, lines...)
}

// usePlot draws what the receiver's cores spend time on.
func (f *figures) usePlot() ([]byte, error) {
	var labels []string
	sets := make([]chart.BarSet, 0, len(model.AllUses()))
	shown := []model.Use{model.UseApp, model.UseTx, model.UseRx, model.UseIRQ}
	for _, u := range shown {
		sets = append(sets, chart.BarSet{Name: u.String()})
	}
	for _, w := range strategies() {
		labels = append(labels, w.name)
		for i, u := range shown {
			sets[i].Values = append(sets[i].Values, 100*f.many[w.name][utilizationCores].use[1][u])
		}
	}
	return chart.Bars(chart.Chart{
		Title:   fmt.Sprintf("What %d receiving cores do, %d flows", utilizationCores, manyFlows),
		Note:    "Simulated. The rest of the time they are idle: some lane has all it can do, and others have nothing.",
		Command: plotCommand,
	}, chart.Axis{Label: "Share of the cores' time, %"}, labels, sets...)
}

// boundsPlot draws the bound of each resource.
func (f *figures) boundsPlot() ([]byte, error) {
	by := map[string]*chart.Series{}
	var order []string
	for _, n := range coreCounts() {
		c := f.costs.config()
		c.Cores, c.Elephants, c.Spread = n, manyFlows, model.Planned
		list, err := model.Bounds(c)
		if err != nil {
			return nil, err
		}
		for _, b := range list {
			switch b.Resource {
			case model.ResourceAppSend, model.ResourceAppReceive, model.ResourceSender:
				continue // far above the others, or above another of its kind
			}
			if by[b.Resource] == nil {
				by[b.Resource] = &chart.Series{Name: b.Resource, Dashed: true}
				order = append(order, b.Resource)
			}
			by[b.Resource].Points = append(by[b.Resource].Points, plotter.XY{X: float64(n), Y: b.BitsPerSecond / 1e9})
		}
	}
	lines := []chart.Series{series("simulated", f.many[planned], gbps)}
	for _, name := range order {
		lines = append(lines, *by[name])
	}
	return chart.Line(chart.Chart{
		Title:   fmt.Sprintf("What each resource lets pass, %d flows, planned ports", manyFlows),
		Note:    "Computed from stage costs; the lowest line is the bottleneck. Lanes and queues: as many as are expected to have a flow.",
		Command: plotCommand,
	}, cores(), chart.Axis{Label: "Gbit/s", Log: true}, lines...)
}
