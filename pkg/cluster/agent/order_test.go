// SPDX-License-Identifier: Apache-2.0

package agent

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

// TestCallsRunDownTheFiles checks the order of files in doc.go: no file calls a function of a file above it. It resolves calls by
// name, methods apart from functions. It skips names that several files declare, and methods that types of other packages have too.
func TestCallsRunDownTheFiles(t *testing.T) {
	order := documentedFiles(t)
	files := map[string]*ast.File{}
	declared := map[string][]string{} // files by name; of methods with a dot
	ambiguous := []string{".String", ".next"}
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
		files[name] = f
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			key := fn.Name.Name
			if fn.Recv != nil {
				key = "." + key
			}
			if !slices.Contains(declared[key], name) {
				declared[key] = append(declared[key], name)
			}
		}
	}
	calls := 0
	for name, f := range files {
		for _, called := range calledNames(f) {
			in := declared[called]
			if len(in) != 1 || in[0] == name || slices.Contains(ambiguous, called) {
				continue
			}
			calls++
			if slices.Index(order, in[0]) < slices.Index(order, name) {
				t.Errorf("%s.go calls %s of %s.go, which is above it", name, called, in[0])
			}
		}
	}
	if calls < 50 {
		t.Errorf("found only %d calls between files", calls)
	}
}

// documentedFiles returns the file names of the list in doc.go.
func documentedFiles(t *testing.T) (names []string) {
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
