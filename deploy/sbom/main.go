// SPDX-License-Identifier: Apache-2.0

// Command sbom prints what a Go program is made of as CycloneDX 1.6 (https://cyclonedx.org/docs/1.6/json/). It reads the
// program itself, so that it lists what was linked, and nothing that was not. The same program gives the same bytes.
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"runtime/debug"
	"strings"
)

func main() {
	log.SetFlags(0)
	if err := run(os.Stdout, os.Args[1:]); err != nil {
		log.Fatalf("sbom: %v", err)
	}
}

func run(w io.Writer, args []string) error {
	if len(args) != 2 {
		return errors.New("usage: sbom PROGRAM VERSION")
	}
	info, err := buildinfo.ReadFile(args[0])
	if err != nil {
		return fmt.Errorf("reading what %s is made of: %w", args[0], err)
	}
	program, err := os.ReadFile(args[0])
	if err != nil {
		return fmt.Errorf("reading %s: %w", args[0], err)
	}
	doc, err := describe(info, sha256.Sum256(program), args[1])
	if err != nil {
		return err
	}
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	return out.Encode(doc)
}

// bom and what it holds are the parts of the format that are used here.
type bom struct {
	Format       string       `json:"bomFormat"`
	Spec         string       `json:"specVersion"`
	Serial       string       `json:"serialNumber"`
	Version      int          `json:"version"`
	Metadata     metadata     `json:"metadata"`
	Components   []component  `json:"components"`
	Dependencies []dependency `json:"dependencies"`
}

type metadata struct {
	Component component `json:"component"`
}

type component struct {
	Type       string     `json:"type"`
	Ref        string     `json:"bom-ref"`
	Name       string     `json:"name"`
	Version    string     `json:"version"`
	PURL       string     `json:"purl"`
	Hashes     []hash     `json:"hashes,omitempty"`
	Properties []property `json:"properties,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type dependency struct {
	Ref       string   `json:"ref"`
	DependsOn []string `json:"dependsOn,omitempty"`
}

// describe lists the program's modules and Go's standard library. digest is the program's.
func describe(info *buildinfo.BuildInfo, digest [sha256.Size]byte, version string) (*bom, error) {
	self := module("application", info.Main.Path, version)
	self.Hashes = []hash{{"SHA-256", hex.EncodeToString(digest[:])}}
	self.Properties = settings(info.Settings)
	all := dependency{Ref: self.Ref}
	doc := &bom{Format: "CycloneDX", Spec: "1.6", Serial: serial(digest), Version: 1, Metadata: metadata{self}}
	add := func(c component) {
		doc.Components = append(doc.Components, c)
		all.DependsOn = append(all.DependsOn, c.Ref)
	}
	add(module("library", "std", strings.TrimPrefix(info.GoVersion, "go")))
	for _, dep := range info.Deps {
		if dep.Replace != nil {
			dep = dep.Replace
		}
		c := module("library", dep.Path, dep.Version)
		sum, err := moduleHash(dep)
		if err != nil {
			return nil, err
		}
		c.Hashes = sum
		add(c)
	}
	doc.Dependencies = []dependency{all}
	return doc, nil
}

// module names a Go module as package URLs do (https://github.com/package-url/purl-spec).
func module(kind, path, version string) component {
	purl := "pkg:golang/" + path + "@" + strings.ReplaceAll(version, "+", "%2B")
	return component{Type: kind, Ref: purl, Name: path, Version: version, PURL: purl}
}

// moduleHash is what go.sum has of a module: the SHA-256 of the list of its files, in base64.
func moduleHash(dep *debug.Module) ([]hash, error) {
	if dep.Sum == "" {
		return nil, nil // a directory
	}
	sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(dep.Sum, "h1:"))
	if err != nil {
		return nil, fmt.Errorf("reading the checksum of %s: %w", dep.Path, err)
	}
	return []hash{{"SHA-256", hex.EncodeToString(sum)}}, nil
}

// settings are those of the build that make a difference to what runs.
func settings(all []debug.BuildSetting) []property {
	var some []property
	for _, s := range all {
		switch s.Key {
		case "GOARCH", "GOOS", "GOAMD64", "GOARM64", "CGO_ENABLED", "-trimpath", "vcs.revision":
			some = append(some, property{"ropewalk:build:" + s.Key, s.Value})
		}
	}
	return some
}

// serial makes a UUID of the program's digest (RFC 9562 §5.8, version 8), so that one program has one.
func serial(digest [sha256.Size]byte) string {
	u := digest[:16]
	u[6], u[8] = u[6]&0x0f|0x80, u[8]&0x3f|0x80
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:16])
}
