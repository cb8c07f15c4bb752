// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"encoding/json"
	"net/netip"
	"testing"
)

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

// TestStateHasNameserversAsText keeps the format of the state, which outlives the program that wrote it.
func TestStateHasNameserversAsText(t *testing.T) {
	const text = `{"servers":["192.0.2.53","fd00::53","[fe80::1%eth0]:5335"],"search":["corp.example"]}`
	var dns dnsEntry
	if err := json.Unmarshal([]byte(text), &dns); err != nil {
		t.Fatal(err)
	}
	if last := dns.Servers[2]; last.Addr != netip.MustParseAddr("fe80::1%eth0") || last.Port != 5335 {
		t.Errorf("got %v", last)
	}
	if got, err := json.Marshal(dns); err != nil || string(got) != text {
		t.Errorf("got %s, error %v, want %s", got, err, text)
	}
	for _, bad := range []string{`{"servers":["vpn.example"]}`, `{"servers":["192.0.2.53:0"]}`, `{"servers":[""]}`} {
		if err := json.Unmarshal([]byte(bad), &dns); err == nil {
			t.Errorf("%s: got no error", bad)
		}
	}
}
