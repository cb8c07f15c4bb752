// SPDX-License-Identifier: Apache-2.0

package quick

import "testing"

func TestSuccessorReplacesSavedProcessID(t *testing.T) {
	dir := t.TempDir()
	r := &Runner{RunDir: dir}
	j := &job{Runner: r, Interface: Interface{Name: "wg0"}}
	if err := RecordSuccessor(dir, "wg0", 7, 8); err != nil {
		t.Errorf("an interface without saved state: %v", err)
	}
	if _, ok := j.loadState(); ok {
		t.Error("state was written for a daemon that no Runner started")
	}
	if err := j.saveState(state{PID: 7, Table: 51820, DNS: true}); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ from, to, want int }{{6, 9, 7}, {7, 8, 8}, {7, 9, 8}} {
		if err := RecordSuccessor(dir, "wg0", tt.from, tt.to); err != nil {
			t.Fatal(err)
		}
		if st, ok := j.loadState(); !ok || st.PID != tt.want || st.Table != 51820 || !st.DNS {
			t.Errorf("%d succeeded by %d: %+v", tt.from, tt.to, st)
		}
	}
	unlock, err := r.lock("wg0")
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if err := RecordSuccessor(dir, "wg0", 8, 9); err == nil {
		t.Error("the state was changed while another Runner has the lock")
	}
}
