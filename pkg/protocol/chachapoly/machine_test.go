// SPDX-License-Identifier: Apache-2.0

package chachapoly

import (
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// wanted are the features of processors for which there is assembly.
var wanted = []string{"avx2", "bmi2", "adx", "vaes", "avx512f", "avx512vl", "avx512dq", "avx512ifma", "avx512_vbmi2", "asimd", "sve2"}

// TestNamesProcessorAndCiphers states the processor's features and the chosen implementations with -v, as the heading of make bench-micro.
func TestNamesProcessorAndCiphers(t *testing.T) {
	info, _ := os.ReadFile("/proc/cpuinfo")
	var has []string
	for word := range strings.FieldsSeq(string(info)) {
		if slices.Contains(wanted, word) && !slices.Contains(has, word) {
			has = append(has, word)
		}
	}
	t.Logf("features: %s %s", runtime.GOARCH, strings.Join(has, " "))
	chosen := map[string]bool{}
	for _, c := range Choices() {
		chosen[c.Implementation] = true
	}
	if len(chosen) == 0 {
		t.Fatal("no cipher was chosen")
	}
	t.Logf("cipher: %s for trains, one or more sets by %s", Implementation(), strings.Join(slices.Sorted(maps.Keys(chosen)), ", "))
}
