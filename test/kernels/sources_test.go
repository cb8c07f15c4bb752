// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDeb822SourcesGiveDebianMirrors(t *testing.T) {
	const debian = `Types: deb
# a comment
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb deb-src
uris: http://a.example/debian-security
 http://b.example/debian-security
Suites: bookworm-security
Components: main contrib
`
	const others = `Types: deb-src
URIs: http://sources.example/
Components: main

Enabled: no
Types: deb
URIs: http://disabled.example/
Components: main

Types: deb
URIs: http://vendor.example/
Components: main
Signed-By: /usr/share/keyrings/vendor.gpg
`
	want := []string{"http://mirror.example/debian", "http://a.example/debian-security", "http://b.example/debian-security"}
	if d := cmp.Diff(want, parseDeb822(debian+"\n"+others)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestOneLineSourcesGiveDebianMirrors(t *testing.T) {
	const text = `# deb http://old.example/debian buster main
deb http://mirror.example/debian bookworm main contrib # with a comment
deb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://keyed.example/debian bookworm main
deb [signed-by=/usr/share/keyrings/vendor.gpg] http://vendor.example/ stable main
deb http://vendor.example/flat ./
deb [broken http://x.example/ bookworm main
deb-src http://mirror.example/debian bookworm main
`
	want := []string{"http://mirror.example/debian", "http://keyed.example/debian"}
	if d := cmp.Diff(want, parseOneLine(text)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestHostMirrorsReadsAllFilesOnce(t *testing.T) {
	etc := t.TempDir()
	if err := os.Mkdir(filepath.Join(etc, "sources.list.d"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"sources.list":                 "deb http://one.example/debian bookworm main\n",
		"sources.list.d/x.list":        "deb http://one.example/debian bookworm-updates main\n",
		"sources.list.d/y.sources":     "Types: deb\nURIs: http://two.example/debian\nSuites: sid\nComponents: main\n",
		"sources.list.d/y.sources.off": "Types: deb\nURIs: http://off.example/debian\nSuites: sid\nComponents: main\n",
	} {
		if err := os.WriteFile(filepath.Join(etc, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := hostMirrors(etc)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"http://one.example/debian", "http://two.example/debian"}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestSecuritySuitesUseSecurityMirrors(t *testing.T) {
	got := sourcesFor([]string{"http://m/debian", "http://m/debian-security/"}, []string{"sid", "bullseye-security", "sid"})
	const options = "[signed-by=" + archiveKeyring + " target=Packages] "
	want := "deb " + options + "http://m/debian sid main\n" +
		"deb " + options + "http://m/debian-security/ bullseye-security main\n"
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func FuzzSources(f *testing.F) {
	f.Add("deb [signed-by=x] http://m/debian sid main\n")
	f.Add("Types: deb\nURIs: http://m\nComponents: main\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, uri := range append(parseDeb822(text), parseOneLine(text)...) {
			if uri == "" {
				t.Error("an empty URI")
			}
		}
	})
}
