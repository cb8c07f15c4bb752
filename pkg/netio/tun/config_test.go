// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"strings"
	"testing"
)

func TestConfigRejectsNamesTheKernelRejects(t *testing.T) {
	for name, valid := range map[string]bool{
		"wg0": true, "rw%d": true, "a": true, "fifteen-bytes-x": true, "käse": true, "wg.5": true,
		"": false, ".": false, "..": false, "sixteen-bytes-xx": false, "a/b": false, "a b": false, "a:b": false,
		"a\tb": false, "%s": false, "%d%d": false, "100%": false, "a\x00b": false,
		"all": false, "default": false, "al%d": true, "defaults": true,
	} {
		if _, err := (Config{Name: name}).complete(); (err == nil) != valid {
			t.Errorf("%q: got error %v", name, err)
		}
	}
	if _, err := (Config{Name: "x", Queues: MaxQueues + 1}).complete(); err == nil {
		t.Error("too many queues were accepted")
	}
	if c, _ := (Config{Name: "x"}).complete(); c.Queues != 1 || c.MTU != DefaultMTU {
		t.Errorf("defaults are %+v", c)
	}
}

func TestConfigRejectsMTUOutOfRange(t *testing.T) {
	for mtu, valid := range map[int]bool{-1: false, 1: false, 67: false, 68: true, 0: true, 65535: true, 65536: false} {
		_, err := Config{Name: "x", MTU: mtu}.complete()
		if (err == nil) != valid {
			t.Errorf("%d: got error %v", mtu, err)
		}
		if err != nil && !strings.Contains(err.Error(), "68 to 65535") {
			t.Errorf("%d: the error has no bounds: %v", mtu, err)
		}
	}
}

func FuzzNames(f *testing.F) {
	f.Add("rw%d")
	f.Add("a:b")
	f.Fuzz(func(t *testing.T, name string) {
		if CheckName(name) == nil && (name == "" || len(name) > 15 || strings.ContainsAny(name, "/: \n\x00")) {
			t.Fatalf("%q was accepted", name)
		}
	})
}
