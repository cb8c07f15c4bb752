// SPDX-License-Identifier: Apache-2.0

// Package callorder checks that the calls of a package run down the list of files in its doc.go.
package callorder

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Options describe a package.
type Options struct {
	// Ambiguous are functions, and methods with a dot before their names, that are not followed:
	// types of other packages also have them.
	Ambiguous []string
	// Upward are calls from a file to one above it that are accepted: "caller called".
	Upward []string
	// Least is the number of calls between files that must be found at least.
	Least int
}

// Check fails the test if doc.go in the working directory does not list a file. It also fails if a
// file calls a function of a file above it. It resolves calls by name, methods apart from
// functions, and skips names that several files declare.
func Check(t testing.TB, o Options) {
	t.Helper()
	order := documentedFiles(t)
	p := parse(t, order)
	calls, upward := 0, map[string]bool{}
	for name, f := range p.files {
		for _, called := range calledNames(f) {
			in := p.declared[called]
			if len(in) != 1 || in[0] == name || slices.Contains(o.Ambiguous, called) {
				continue
			}
			calls++
			if slices.Index(order, in[0]) >= slices.Index(order, name) {
				continue
			}
			pair := name + " " + in[0]
			upward[pair] = true
			if !slices.Contains(o.Upward, pair) {
				t.Errorf("%s.go calls %s of %s.go, which is above it", name, called, in[0])
			}
		}
	}
	for _, pair := range o.Upward {
		if !upward[pair] {
			t.Errorf("accepted upward call %q does not exist", pair)
		}
	}
	if calls < o.Least {
		t.Errorf("found only %d calls between files, want at least %d", calls, o.Least)
	}
}

// sources are the parsed files of a package.
type sources struct {
	files    map[string]*ast.File
	declared map[string][]string // files by the name of a function, or of a method with a dot
}

// parse reads the package in the working directory, without tests and doc.go.
func parse(t testing.TB, order []string) sources {
	t.Helper()
	s := sources{map[string]*ast.File{}, map[string][]string{}}
	paths, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		name := strings.TrimSuffix(path, ".go")
		if strings.HasSuffix(name, "_test") || name == "doc" {
			continue
		}
		if !slices.Contains(order, name) {
			t.Errorf("doc.go does not list %s", path)
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		s.files[name] = f
		for _, key := range declaredNames(f) {
			if !slices.Contains(s.declared[key], name) {
				s.declared[key] = append(s.declared[key], name)
			}
		}
	}
	return s
}

// documentedFiles returns the file names of the list in doc.go: "  - words: name, name". An item ends with the line.
func documentedFiles(t testing.TB) (names []string) {
	t.Helper()
	text, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, item := range regexp.MustCompile(`//   - [^:]+: ([^\n]+(?:\n//     [^\n]+)*)`).FindAllStringSubmatch(string(text), -1) {
		names = append(names, regexp.MustCompile(`\w+`).FindAllString(item[1], -1)...)
	}
	return names
}

// declaredNames returns the functions of a file, and the methods with a dot before their names.
func declaredNames(f *ast.File) (names []string) {
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok {
			if fn.Recv != nil {
				names = append(names, "."+fn.Name.Name)
			} else {
				names = append(names, fn.Name.Name)
			}
		}
	}
	return names
}

// calledNames returns the functions that a file calls, and the methods with a dot before their names. It leaves out functions of
// imported packages.
func calledNames(f *ast.File) (names []string) {
	imported := map[string]bool{}
	for _, i := range f.Imports {
		imported[strings.Trim(i.Path.Value[strings.LastIndexByte(i.Path.Value, '/')+1:], `"`)] = true
	}
	ast.Inspect(f, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		switch fn := call.Fun.(type) {
		case *ast.Ident:
			names = append(names, fn.Name)
		case *ast.SelectorExpr:
			if pkg, ok := fn.X.(*ast.Ident); !ok || !imported[pkg.Name] {
				names = append(names, "."+fn.Sel.Name)
			}
		}
		return true
	})
	return names
}
