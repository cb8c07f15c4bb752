// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSBOMListsEveryModuleWithHash(t *testing.T) {
	info := &debug.BuildInfo{
		GoVersion: "go1.26.0",
		Main:      debug.Module{Path: "example.org/program"},
		Deps: []*debug.Module{
			{Path: "example.org/a", Version: "v1.2.3", Sum: "h1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="},
			{Path: "example.org/b", Version: "v1.0.0", Replace: &debug.Module{Path: "example.org/c", Version: "v2.0.0+incompatible"}},
		},
		Settings: []debug.BuildSetting{{Key: "GOARCH", Value: "arm64"}, {Key: "-ldflags", Value: "-s"}},
	}
	doc, err := describe(info, [32]byte{0xff}, "v1.0.0")
	if err != nil {
		t.Fatal(err)
	}
	var purls []string
	for _, c := range doc.Components {
		purls = append(purls, c.PURL)
	}
	want := []string{"pkg:golang/std@1.26.0", "pkg:golang/example.org/a@v1.2.3", "pkg:golang/example.org/c@v2.0.0%2Bincompatible"}
	if diff := cmp.Diff(want, purls); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]dependency{{Ref: "pkg:golang/example.org/program@v1.0.0", DependsOn: want}}, doc.Dependencies); diff != "" {
		t.Error(diff)
	}
	if got, want := doc.Components[1].Hashes[0].Content, "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"; got != want {
		t.Errorf("hash %s, want %s", got, want)
	}
	if doc.Serial != "urn:uuid:ff000000-0000-8000-8000-000000000000" {
		t.Error(doc.Serial)
	}
	if diff := cmp.Diff([]property{{"ropewalk:build:GOARCH", "arm64"}}, doc.Metadata.Component.Properties); diff != "" {
		t.Error(diff)
	}
	info.Deps[0].Sum = "h1:*"
	if _, err := describe(info, [32]byte{}, "v1.0.0"); err == nil {
		t.Error("an invalid checksum is accepted")
	}
}

func TestSBOMIsReproducible(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var first, second bytes.Buffer
	for _, b := range []*bytes.Buffer{&first, &second} {
		if err := run(b, []string{self, "v1"}); err != nil {
			t.Fatal(err)
		}
	}
	if first.String() != second.String() || !json.Valid(first.Bytes()) || !strings.Contains(first.String(), `"bomFormat": "CycloneDX"`) {
		t.Errorf("%s\n%s", &first, &second)
	}
}

func TestRunRejectsInvalidArguments(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("not a program"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{nil, {text}, {text, "v1"}, {text + "x", "v1"}} {
		if err := run(&bytes.Buffer{}, args); err == nil {
			t.Errorf("%q is accepted", args)
		}
	}
}
