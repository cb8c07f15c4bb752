// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/pkg/control/quick"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/test/golden"
)

func TestConfigurationPageIsCurrent(t *testing.T) {
	golden.Check(t, "../../docs/configuration.md", configurationPage(newRootCmd()))
}

func TestConfigurationPageHasEveryCommandAndFlag(t *testing.T) {
	page := configurationPage(newRootCmd())
	walk(newRootCmd(), func(cmd *cobra.Command) {
		_, after, ok := strings.Cut(page, "| **`"+strings.ReplaceAll(strings.TrimPrefix(cmd.UseLine(), "ropewalk "), "|", `\|`)+"`** |")
		if !ok && cmd.HasParent() {
			t.Errorf("%s is missing", cmd.CommandPath())
		}
		flags, _, _ := strings.Cut(after, "| **`")
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			row := "| " + strings.ReplaceAll(flagForms(f), "|", `\|`) + " |"
			if cmd.HasParent() && f.Name != "help" && !f.Hidden && !strings.Contains(flags, row) {
				t.Errorf("%s --%s is missing", cmd.CommandPath(), f.Name)
			}
		})
	})
}

// TestEnvironmentListsAllVariables compares environment with all calls of os.Getenv and os.LookupEnv.
func TestEnvironmentListsAllVariables(t *testing.T) {
	internal := map[string]bool{"ROPEWALK_STARTED_BY_UP": true, "ROPEWALK_KEEP_SOCKET": true, "ROPEWALK_LOG_FROM_UP": true, "ROPEWALK_READY_FD": true, "ROPEWALK_FAILURE_FD": true, "ROPEWALK_KEPT": true} // between processes of ropewalk
	read := environmentRead(t, ".", "../ropewalk-agent", "../../pkg")
	known := map[string]bool{}
	for _, v := range environment() {
		known[v.name] = true
		if !read[v.name] && !v.foreign {
			t.Errorf("nothing reads %s", v.name)
		}
	}
	for name := range read {
		if !known[name] && !internal[name] {
			t.Errorf("%s is read, and environment does not list it", name)
		}
	}
}

// environmentRead returns the names of the variables that the packages below the directories read. If a name is not a literal in
// the call, it is a string constant of the same file.
func environmentRead(t *testing.T, dirs ...string) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && d.Name() == "testdata":
				return filepath.SkipDir
			case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			return addEnvironment(names, path)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(names) < 5 {
		t.Errorf("only %v were found", names)
	}
	return names
}

func addEnvironment(names map[string]bool, path string) error {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		return err
	}
	indirect := false
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || !readsEnvironment(call.Fun) {
			return true
		}
		if lit, ok := call.Args[0].(*ast.BasicLit); ok {
			name, _ := strconv.Unquote(lit.Value)
			names[name] = true
		} else {
			indirect = true
		}
		return true
	})
	if indirect {
		addConstants(names, file)
	}
	return nil
}

func readsEnvironment(f ast.Expr) bool {
	sel, ok := f.(*ast.SelectorExpr)
	if !ok || sel.Sel.Name != "Getenv" && sel.Sel.Name != "LookupEnv" {
		return false
	}
	pkg, ok := sel.X.(*ast.Ident)
	return ok && (pkg.Name == "os" || pkg.Name == "unix" || pkg.Name == "syscall")
}

// addConstants adds all string literals of a file that look like the name of a variable.
func addConstants(names map[string]bool, file *ast.File) {
	ast.Inspect(file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			name, _ := strconv.Unquote(lit.Value)
			if len(name) > 3 && strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_") == "" {
				names[name] = true
			}
		}
		return true
	})
}

// TestReloadAppliesTheDocumentedKeys relies on config.Device having a field of each key's name.
func TestReloadAppliesTheDocumentedKeys(t *testing.T) {
	values := map[string]string{
		"PrivateKey": manualPrivate, "ListenPort": "51821", "FwMark": "7", "Address": "10.0.0.1/24", "DNS": "192.0.2.1", "MTU": "1420", "Table": "off",
		"SaveConfig": "false", "PreUp": "x", "PostUp": "x", "PreDown": "x", "PostDown": "x",
		"Lanes": "2", "Metrics": "127.0.0.1:9820",
	}
	for _, s := range config.Table() {
		values[s.Name] = s.Default
	}
	var text strings.Builder
	text.WriteString("[Interface]\n")
	for _, k := range conffile.Keys() {
		if k.Section == "Interface" {
			text.WriteString(k.Name + " = " + values[k.Name] + "\n")
		}
	}
	file, err := conffile.Parse("wg0.conf", strings.NewReader(text.String()), conffile.Quick)
	if err != nil {
		t.Fatal(err)
	}
	dev, err := quick.Resync(t.Context(), file, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range conffile.Keys() {
		field := reflect.ValueOf(dev).FieldByName(k.Name)
		taken := field.IsValid() && !field.IsZero()
		if k.Section == "Interface" && k.Origin != "wg-quick" && taken != k.Reload {
			t.Errorf("reload applies %s: %v; the documentation says %v", k.Name, taken, k.Reload)
		}
	}
}
