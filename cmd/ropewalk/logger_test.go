// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestLoggerUsesTheGivenFormat(t *testing.T) {
	for format, want := range map[string]string{"": "level=INFO msg=hello", "text": "level=INFO msg=hello", "JSON": `"msg":"hello"`} {
		var b bytes.Buffer
		log, level, err := (&logOptions{format: format}).open(&b)
		if err != nil {
			t.Fatal(err)
		}
		log.Debug("quiet")
		log.Info("hello")
		level.Set(100)
		log.Error("silent")
		if got := b.String(); !strings.Contains(got, want) || strings.Count(got, "\n") != 1 {
			t.Errorf("%q: got %s, want %q in it", format, got, want)
		}
	}
}
