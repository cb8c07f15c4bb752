// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// fetcher fills a cache directory with unpacked kernels. It has its own apt state and neither reads nor changes the host's package
// lists and installed packages.
type fetcher struct {
	cache string
	logf  func(format string, args ...any)
}

// Fetch returns the available kernels of list, and an error for each of the others. Both maps are keyed by the series' name.
func (f *fetcher) Fetch(ctx context.Context, list []series) (map[string]*unpacked, map[string]error) {
	got, failed := map[string]*unpacked{}, map[string]error{}
	var missing []series
	for _, s := range list {
		if k, err := openUnpacked(s, f.dir(s)); err == nil {
			got[s.name] = k
		} else {
			missing = append(missing, s)
		}
	}
	var names []string
	var err error
	if mirrored := slices.DeleteFunc(slices.Clone(missing), series.isPinned); len(mirrored) > 0 {
		names, err = f.availablePackages(ctx, mirrored)
	}
	for _, s := range missing {
		fetch := func() (*unpacked, error) { return f.fetchOne(ctx, s, names, err) }
		if s.isPinned() {
			fetch = func() (*unpacked, error) { return f.fetchPinned(ctx, s) }
		}
		k, ferr := fetch()
		if ferr != nil {
			failed[s.name] = ferr
			continue
		}
		got[s.name] = k
	}
	return got, failed
}

func (f *fetcher) dir(s series) string { return filepath.Join(f.cache, s.name) }

// availablePackages updates the package lists of the suites of all series and returns the names of the kernel packages. A suite that
// the mirror lacks is not an error here. fetchOne reports the missing kernel.
func (f *fetcher) availablePackages(ctx context.Context, list []series) ([]string, error) {
	mirrors, err := hostMirrors("/etc/apt")
	if err != nil {
		return nil, err
	}
	if len(mirrors) == 0 {
		return nil, fmt.Errorf("no Debian mirror in /etc/apt/sources.list or /etc/apt/sources.list.d")
	}
	var suites []string
	for _, s := range list {
		suites = append(suites, s.suites...)
	}
	for _, d := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(f.cache, "apt", d), 0o755); err != nil {
			return nil, err
		}
	}
	if err := os.WriteFile(f.sourceList(), []byte(sourcesFor(mirrors, suites)), 0o644); err != nil {
		return nil, err
	}
	f.logf("updating package lists of %s", strings.Join(suites, ", "))
	if out, err := f.apt(ctx, f.cache, "apt-get", "update"); err != nil {
		f.logf("apt-get update: %v\n%s", err, out)
	}
	out, err := f.apt(ctx, f.cache, "apt-cache", "pkgnames", "linux-")
	if err != nil {
		return nil, fmt.Errorf("listing packages: %w", err)
	}
	return strings.Fields(out), nil
}

// fetchOne downloads and unpacks into a temporary directory, so that the cache never contains an incomplete kernel.
func (f *fetcher) fetchOne(ctx context.Context, s series, names []string, listErr error) (*unpacked, error) {
	if listErr != nil {
		return nil, fmt.Errorf("kernel %s: %w", s.name, listErr)
	}
	release, ok := s.newest(names)
	if !ok {
		return nil, fmt.Errorf("kernel %s: the mirror has no %s%s in %s; choose others with KERNELS=",
			s.name, strings.Join(s.packages, "*, "), s.release, strings.Join(s.suites, ", "))
	}
	f.logf("fetching Linux %s", release)
	return f.replace(ctx, s, func(tmp string) error { return f.download(ctx, tmp, s.packageNames(release)) })
}

// replace puts the kernel whose packages download saves into the cache.
func (f *fetcher) replace(ctx context.Context, s series, download func(dir string) error) (*unpacked, error) {
	tmp, err := os.MkdirTemp(f.cache, s.name+".part-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	if err := download(tmp); err != nil {
		return nil, fmt.Errorf("kernel %s: %w", s.name, err)
	}
	if err := f.unpack(ctx, tmp); err != nil {
		return nil, fmt.Errorf("kernel %s: %w", s.name, err)
	}
	if err := os.RemoveAll(f.dir(s)); err != nil {
		return nil, err
	}
	if err := os.Rename(filepath.Join(tmp, "root"), f.dir(s)); err != nil {
		return nil, err
	}
	return openUnpacked(s, f.dir(s))
}

// download saves packages of the mirror in dir.
func (f *fetcher) download(ctx context.Context, dir string, packages []string) error {
	if out, err := f.apt(ctx, dir, "apt-get", append([]string{"download"}, packages...)...); err != nil {
		return fmt.Errorf("downloading %s: %w\n%s", strings.Join(packages, ", "), err, out)
	}
	if debs, err := filepath.Glob(filepath.Join(dir, "*.deb")); err != nil || len(debs) != len(packages) {
		return fmt.Errorf("downloading %s: got %d files", strings.Join(packages, ", "), len(debs))
	}
	return nil
}

// unpack unpacks the packages in dir into its directory root.
func (f *fetcher) unpack(ctx context.Context, dir string) error {
	debs, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil {
		return err
	}
	for _, deb := range debs {
		out, err := exec.CommandContext(ctx, "dpkg-deb", "--extract", deb, filepath.Join(dir, "root")).CombinedOutput()
		if err != nil {
			return fmt.Errorf("unpacking %s: %w\n%s", filepath.Base(deb), err, out)
		}
	}
	return nil
}

func (f *fetcher) sourceList() string { return filepath.Join(f.cache, "apt", "sources.list") }

// apt runs an apt tool with the fetcher's apt state. The host's configuration, such as proxies, still applies.
func (f *fetcher) apt(ctx context.Context, dir, tool string, args ...string) (string, error) {
	options := []string{
		"Dir::Etc::sourcelist=" + f.sourceList(),
		"Dir::Etc::sourceparts=-",
		"Dir::State::lists=" + filepath.Join(f.cache, "apt", "lists"),
		"Dir::Cache=" + filepath.Join(f.cache, "apt", "cache"),
		"Dir::State::status=/dev/null",
		"APT::Architecture=amd64",
		"APT::Sandbox::User=root",          // the files belong to the caller, not to _apt
		"Acquire::Check-Valid-Until=false", // the Release files of old suites have expired
		"Acquire::Languages=none",
		"Acquire::Retries=3",
	}
	argv := []string{}
	for _, o := range options {
		argv = append(argv, "-o", o)
	}
	cmd := exec.CommandContext(ctx, tool, slices.Concat(argv, args)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out) + stderr.String(), err
	}
	return string(out), nil
}
