// SPDX-License-Identifier: Apache-2.0

package uapi

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/test/expect"
)

// TestFeaturesListEachOwnKey: a client that misses one in the list does not send it.
func TestFeaturesListEachOwnKey(t *testing.T) {
	source, err := os.ReadFile("uapi.go")
	expect.NoError(t, err)
	keys := regexp.MustCompile(`\n\tkey[A-Z]\w+ += "(\w+)"`).FindAllStringSubmatch(string(source), -1)
	if len(keys) < 3 {
		t.Errorf("found only %d keys in uapi.go", len(keys))
	}
	for _, key := range keys {
		if !slices.Contains(Features(), "set."+key[1]) {
			t.Errorf("no feature set.%s", key[1])
		}
	}
}

func TestEachFeatureOfSetIsKnown(t *testing.T) {
	for _, feature := range Features() {
		key, ok := strings.CutPrefix(feature, "set.")
		if !ok {
			continue
		}
		peerKey := "public_key=" + strings.Repeat("00", 32) + "\n"
		if key, value, ok := strings.Cut(key, "."); ok {
			if _, err := ParseSet(strings.NewReader(peerKey + key + "=" + value + "\n")); err != nil {
				t.Errorf("%s: %v", feature, err)
			}
			continue
		}
		_, device := ParseSet(strings.NewReader(key + "=\x00\n"))
		_, peer := ParseSet(strings.NewReader(peerKey + key + "=\x00\n"))
		if strings.Contains(device.Error(), "unknown") && strings.Contains(peer.Error(), "unknown") {
			t.Errorf("%s: the parser knows no such key", feature)
		}
	}
}
