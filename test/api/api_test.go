// SPDX-License-Identifier: Apache-2.0

// Package api compares what other programs may import with testdata, and checks what
// docs/architecture.md promises of these packages.
package api

import (
	"bytes"
	"go/ast"
	"go/build"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/test/golden"
)

const root = "../.."

// promised returns the packages below pkg that the paragraph "For other programs" of docs/architecture.md lists.
func promised(t *testing.T) (packages []string) {
	text, err := os.ReadFile(filepath.Join(root, "docs/architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "**For other programs**")
	paragraph, _, _ := strings.Cut(rest, "\n\n")
	for _, m := range regexp.MustCompile("`pkg/([a-z/]+)`").FindAllStringSubmatch(paragraph, -1) {
		packages = append(packages, m[1])
	}
	if len(packages) < 8 {
		t.Fatalf("found only the packages %v", packages)
	}
	return packages
}

// parse returns the files of the package in dir on linux/amd64, without tests. mode is a parser.Mode.
func parse(t *testing.T, dir string, mode parser.Mode) (*token.FileSet, []*ast.File) {
	context := build.Default
	context.GOOS, context.GOARCH = "linux", "amd64"
	p, err := context.ImportDir(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	fset := token.NewFileSet()
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(fset, filepath.Join(dir, name), nil, mode)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return fset, files
}

// TestExportedNamesAreUnchanged fails on a change of the API. An intended change also has a line in CHANGELOG.md.
func TestExportedNamesAreUnchanged(t *testing.T) {
	for _, name := range promised(t) {
		t.Run(name, func(t *testing.T) {
			golden.Check(t, "testdata/"+strings.ReplaceAll(name, "/", "_")+".txt", summary(t, filepath.Join(root, "pkg", name)))
			if t.Failed() {
				t.Error("other programs import this package: to accept the change, run `go test ./test/api -update` and add a line to CHANGELOG.md")
			}
		})
	}
}

// summary returns the exported declarations of a package in the order of their text.
func summary(t *testing.T, dir string) string {
	fset, files := parse(t, dir, parser.SkipObjectResolution)
	var texts []string
	for _, f := range files {
		ast.FileExports(f)
		for _, decl := range f.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Recv != nil && !receiver(d.Recv.List[0].Type).IsExported() {
					continue
				}
				d.Body = nil
			case *ast.GenDecl:
				if d.Tok == token.IMPORT {
					continue
				}
			}
			var b bytes.Buffer
			if err := printer.Fprint(&b, fset, decl); err != nil {
				t.Fatal(err)
			}
			texts = append(texts, regexp.MustCompile(`\n\s*\n`).ReplaceAllString(b.String(), "\n")+"\n")
		}
	}
	slices.Sort(texts)
	return strings.Join(texts, "")
}

// receiver returns the name of a method's type.
func receiver(of ast.Expr) *ast.Ident {
	switch e := of.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	}
	return of.(*ast.Ident)
}

func TestEachPromisedPackageHasAnExample(t *testing.T) {
	for _, name := range promised(t) {
		tests, err := filepath.Glob(filepath.Join(root, "pkg", name, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(tests, func(path string) bool {
			text, err := os.ReadFile(path)
			return err == nil && bytes.Contains(text, []byte("\nfunc Example"))
		}) {
			t.Errorf("pkg/%s has no Example function", name)
		}
	}
}

// TestOtherPackagesAreRopewalksOwn reads the documentation of packages. Those below internal need none, and a room has no names.
func TestOtherPackagesAreRopewalksOwn(t *testing.T) {
	mayBeImported := promised(t)
	err := filepath.WalkDir(filepath.Join(root, "pkg"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if base := d.Name(); base == "internal" || base == "testdata" || strings.HasPrefix(base, "_") {
			return filepath.SkipDir
		}
		name, _ := filepath.Rel(filepath.Join(root, "pkg"), path)
		if sources, _ := filepath.Glob(filepath.Join(path, "*.go")); len(sources) == 0 || !strings.Contains(name, "/") {
			return nil
		}
		_, files := parse(t, path, parser.PackageClauseOnly|parser.ParseComments)
		i := slices.IndexFunc(files, func(f *ast.File) bool { return f.Doc != nil })
		if i < 0 {
			t.Errorf("pkg/%s has no documentation", name)
			return nil
		}
		const note = "Not for other programs: it may change without notice."
		if own := strings.Contains(files[i].Doc.Text(), note); own == slices.Contains(mayBeImported, name) {
			t.Errorf("pkg/%s: the documentation says %q: %v, and docs/architecture.md lists the packages that other programs may import", name, note, own)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
