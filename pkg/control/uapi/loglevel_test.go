// SPDX-License-Identifier: Apache-2.0

package uapi_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"syscall"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
)

// serveLevel serves a device whose log level can be changed, and returns a client and the log.
func serveLevel(t *testing.T, level *slog.LevelVar) (*uapi.Client, *bytes.Buffer) {
	t.Helper()
	var out bytes.Buffer
	return clientOf(t, &uapi.Server{Log: slog.New(slog.NewTextHandler(&out, nil)), Level: level}), &out
}

func TestLogLevelIsReadAndChangedThroughTheSocket(t *testing.T) {
	var level slog.LevelVar
	client, _ := serveLevel(t, &level)
	if got, err := client.LogLevel(); got != "info" || err != nil {
		t.Errorf("got %q, error %v, want %q, no error", got, err, "info")
	}
	for _, name := range uapi.Levels() {
		got, err := client.SetLogLevel(strings.ToUpper(name))
		if want, _ := uapi.ParseLevel(name); got != name || err != nil || level.Level() != want {
			t.Errorf("%s: got %q, %v, and %v", name, got, err, level.Level())
		}
	}
	if _, err := client.SetLogLevel("loud"); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("an unknown level: got error %v, want %v", err, syscall.EINVAL)
	}
	if _, err := client.SetLogLevel("debug\nlevel=info"); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("two levels: got error %v, want %v", err, syscall.EINVAL)
	}
	if got, err := client.LogLevel(); got != "silent" || err != nil {
		t.Errorf("after the errors: got %q, error %v, want %q, no error", got, err, "silent")
	}
}

func TestLogLevelChangeIsRefusedWithoutLevelVar(t *testing.T) {
	client, _ := serveLevel(t, nil)
	if _, err := client.SetLogLevel("debug"); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Error(err)
	}
	if _, err := client.Status(); err != nil {
		t.Errorf("the connection is lost: %v", err)
	}
}

func TestLevelNamesAndAliasesAreParsed(t *testing.T) {
	for name, want := range map[string]string{"verbose": "debug", "WARNING": "warn", "Silent": "silent", "error": "error"} {
		level, err := uapi.ParseLevel(name)
		if got := uapi.LevelName(level); got != want || err != nil {
			t.Errorf("%s: got %s, error %v, want %s, no error", name, got, err, want)
		}
	}
	if _, err := uapi.ParseLevel(""); err == nil {
		t.Error("an empty name is accepted as a level")
	}
	if got := uapi.LevelName(slog.LevelInfo + 1); got != "INFO+1" {
		t.Error(got)
	}
}
