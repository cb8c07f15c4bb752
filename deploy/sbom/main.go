// SPDX-License-Identifier: Apache-2.0

// Command sbom prints the SBOM of a Go program in CycloneDX 1.6 (https://cyclonedx.org/docs/1.6/json/). It reads the build
// information in the program, which lists exactly the linked modules. The same program gives the same bytes; cyclonedx-gomod
// cannot do that, because it always writes the current time (https://github.com/CycloneDX/cyclonedx-gomod/issues/648).
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
		return fmt.Errorf("reading the build information of %s: %w", args[0], err)
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

// bom is a CycloneDX document. It has only the fields that this program writes.
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

// describe returns the SBOM of a program: its modules and Go's standard library. digest is the SHA-256 of the program.
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

// module returns the component of a Go module, identified by its package URL (https://github.com/package-url/purl-spec).
func module(kind, path, version string) component {
	purl := "pkg:golang/" + path + "@" + strings.ReplaceAll(version, "+", "%2B")
	return component{Type: kind, Ref: purl, Name: path, Version: version, PURL: purl}
}

// moduleHash returns the hash of a module in go.sum: the SHA-256 of the list of its files.
func moduleHash(dep *debug.Module) ([]hash, error) {
	if dep.Sum == "" {
		return nil, nil // replaced by a directory
	}
	sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(dep.Sum, "h1:"))
	if err != nil {
		return nil, fmt.Errorf("reading the checksum of %s: %w", dep.Path, err)
	}
	return []hash{{"SHA-256", hex.EncodeToString(sum)}}, nil
}

// settings returns the build settings that affect the compiled program.
func settings(all []debug.BuildSetting) []property {
	var relevant []property
	for _, s := range all {
		switch s.Key {
		case "GOARCH", "GOOS", "GOAMD64", "GOARM64", "CGO_ENABLED", "-trimpath", "vcs.revision":
			relevant = append(relevant, property{"ropewalk:build:" + s.Key, s.Value})
		}
	}
	return relevant
}

// serial derives the serial number from the digest of the program (a UUID of version 8, RFC 9562 §5.8), so that it is reproducible.
func serial(digest [sha256.Size]byte) string {
	u := digest[:16]
	u[6], u[8] = u[6]&0x0f|0x80, u[8]&0x3f|0x80
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:16])
}
