// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/ebpf/hook"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/test/expect"
)

// filterStatus returns the status of a device's filter.
func (s *side) filterStatus(device string) (st hook.Status) {
	s.r.Helper()
	s.do(func() error {
		p, err := pinsIn(s.r.fs)
		if err != nil {
			return err
		}
		st, err = p.filters().hook(device, deviceIndex(device), hook.Ingress, s.host.kind).Status()
		return err
	})
	return st
}

// reconcile reconciles as a poll of Watch does.
func (s *side) reconcile(known history) (report Report) {
	s.r.Helper()
	s.do(func() error {
		result, err := s.host.reconcile(s.r.Context(), s.config(), known)
		report = result.report
		return err
	})
	return report
}

// plugPod adds a container without addresses. It returns the host's end.
func (r *rig) plugPod() (device string) {
	r.Helper()
	pod, err := r.lab.Host("pod")
	expect.NoError(r, err)
	veth, err := r.lab.Cable(pod, r.here.lab, netlab.CableConfig{})
	expect.NoError(r, err)
	return veth.DeviceB
}

// TestFiltersOfClsactAreIndependent: two tunnels have a device each. One ends, and with it the other one's filter would end if they shared a program.
func TestFiltersOfClsactAreIndependent(t *testing.T) {
	r := newRig(t)
	r.here.host.kind = hook.Clsact
	first, second := wg(thereAddr.String()+":51820"), wg(thereAddr.String()+":51821")
	second.Name, second.Port = "wg1", port+1
	r.here.finder.set(first, second)
	other := r.here.config()
	other.Port = second.Port
	known := history{attempts: attempts{}}
	r.here.tun("wg0")
	r.here.tun("wg1")
	pod := r.plugPod()
	r.here.attach(r.here.config())
	r.here.attach(other)
	r.here.reconcile(known)
	before := r.here.filterStatus("wg0")
	if gone := r.here.filterStatus("wg1"); before.State != hook.Attached || gone.State != hook.Attached || before.Program == gone.Program {
		t.Fatalf("got %+v and %+v, want two attached programs", before, gone)
	}
	if st := r.here.filterStatus(pod); st.State != hook.Detached {
		t.Errorf("got %+v at a container, want none with clsact", st)
	}
	expect.NoError(t, r.here.lab.RemoveLink("wg1"))
	r.here.reconcile(known)
	if st := r.here.filterStatus("wg0"); st != before {
		t.Errorf("got %+v, want %+v as before the other device ended", st, before)
	}
	r.here.detach(0)
	r.here.clean()
}

// TestFilterNeverStopsSpread: a pin that is not ropewalk's is in the way.
func TestFilterNeverStopsSpread(t *testing.T) {
	r := newRig(t)
	r.here.attach(r.here.config())
	inTheWay := ""
	r.here.do(func() error {
		p, err := pinsIn(r.fs)
		inTheWay = p.filters().hook("gone", 0, hook.Ingress, hook.Best).Pin
		return errors.Join(err, os.MkdirAll(inTheWay, 0o700))
	})
	for _, report := range []Report{r.here.attach(r.here.config()), r.here.reconcile(history{})} {
		if !slices.ContainsFunc(report.Warnings, func(w string) bool { return strings.Contains(w, inTheWay) }) {
			t.Errorf("got warnings %q, want one of %s", report.Warnings, inTheWay)
		}
	}
	expect.NoError(t, errors.Join(os.Remove(inTheWay), os.Remove(filepath.Dir(inTheWay))))
	r.here.detach(0)
	r.here.clean()
}

// TestRemovedFilterLeavesSpread: a device had the filter, and has the programs now.
func TestRemovedFilterLeavesSpread(t *testing.T) {
	r := newRig(t)
	r.here.host.kind = hook.Clsact
	r.here.attach(r.here.config())
	r.here.do(func() error {
		p, err := pinsIn(r.fs)
		if err != nil {
			return err
		}
		l := filterLoader{pins: p.filterState()}
		defer l.close()
		d := device{name: r.here.device, index: deviceIndex(r.here.device), ethernet: true}
		at := p.filters().hook(d.name, d.index, hook.Ingress, hook.Clsact)
		return errors.Join(p.filters().attachFilter(at, d, &l), p.removeFilters(nil))
	})
	if st := r.here.status(); st.Spread.State != "attached" || st.Gather.State != "attached" {
		t.Errorf("got %+v and %+v, want both attached", st.Spread, st.Gather)
	}
	r.here.detach(0)
	r.here.clean()
}

// TestMetricsReadNoFilterOfDevices: a host has one for each container.
func TestMetricsReadNoFilterOfDevices(t *testing.T) {
	r := newRig(t)
	pod := r.plugPod()
	r.here.attach(r.here.config())
	if r.here.filterStatus(pod).State == hook.Detached {
		t.Skip("needs tcx (Linux 6.6)")
	}
	var forMetrics []DeviceStatus
	r.here.do(func() (err error) {
		p, err := pinsIn(r.fs)
		pin := p.filters().hook(pod, deviceIndex(pod), hook.Ingress, hook.Best).Pin
		expect.NoError(t, errors.Join(err, os.Remove(pin), os.Mkdir(pin, 0o700)))
		forMetrics, err = r.here.host.StatusForMetrics(r.Context())
		return err
	})
	if st := r.here.status(); len(st.Problems) != 1 || !strings.Contains(st.Problems[0], pod) {
		t.Errorf("got problems %q in the status, want one of the container's device", st.Problems)
	}
	if len(forMetrics) != 1 || len(forMetrics[0].Problems) != 0 || len(forMetrics[0].Filter.Devices) != 0 || len(forMetrics[0].Counters) == 0 {
		t.Errorf("got %+v for metrics, want the counters, and no device with a filter", forMetrics)
	}
}

// TestRefusedReplacementKeepsFilter: it failed to replace a filter that works.
func TestRefusedReplacementKeepsFilter(t *testing.T) {
	r := newRig(t)
	pod := r.plugPod()
	r.here.attach(r.here.config())
	before := r.here.filterStatus(pod)
	if before.State == hook.Detached {
		t.Skip("needs tcx (Linux 6.6)")
	}
	index := 0
	r.here.do(func() error { index = deviceIndex(pod); return nil })
	known := history{attempts: attempts{index: {unix.ENOMEM, time.Now().Add(time.Hour)}}}
	r.here.reconcile(known)
	if st := r.here.filterStatus(pod); st != before {
		t.Errorf("got %+v, want %+v", st, before)
	}
	expect.NoError(t, r.here.lab.RemoveLink(pod))
	r.here.reconcile(known)
	if a, kept := known.attempts[index]; kept {
		t.Errorf("the device is gone, and %+v is kept", a)
	}
}
