// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// script returns a kubectl that is a script.
func script(t *testing.T, text string) Command {
	t.Helper()
	program := filepath.Join(t.TempDir(), "kubectl")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"+text), 0o700); err != nil {
		t.Fatal(err)
	}
	return Command{Program: program, Flags: []string{"--context=c"}}
}

func TestForwardedPortIsRead(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = io.WriteString(w, "metric 1\n")
	}))
	t.Cleanup(server.Close)
	k := script(t, "echo \"Forwarding from "+strings.TrimPrefix(server.URL, "http://")+" -> 9567\"\nexec sleep 60\n")
	if got, err := k.Forwarded(t.Context(), "system", "p", "9567", "/metrics"); err != nil || string(got) != "metric 1\n" {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := k.Forwarded(t.Context(), "system", "p", "9567", "/other"); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("got %v", err)
	}
}

func TestFailedForwardHasMessage(t *testing.T) {
	for text, want := range map[string]string{"echo unable to forward >&2; exit 1": "unable to forward", "echo something else": "it prints"} {
		if _, err := script(t, text).Forwarded(t.Context(), "system", "p", "9567", "/metrics"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestOutputHasMessageAndExitCode(t *testing.T) {
	got, err := script(t, `echo "$@"; echo it failed >&2; exit 3`).Output(t.Context(), "get", "nodes")
	coded, _ := errors.AsType[interface {
		error
		ExitCode() int
	}](err)
	if string(got) != "--context=c get nodes\n" || coded == nil || coded.ExitCode() != 3 || !strings.Contains(err.Error(), "it failed") {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestSilentCommandEnds(t *testing.T) {
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, silentError{time.Millisecond})
	defer cancel()
	_, err := script(t, "exec sleep 60").Output(ctx, "get")
	if _, ok := errors.AsType[silentError](err); !ok {
		t.Errorf("got %v", err)
	}
}
