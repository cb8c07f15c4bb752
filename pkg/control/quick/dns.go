// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
)

// ErrNoResolvconf is the error for a file with DNS on a host without resolvconf.
var ErrNoResolvconf = errors.New("setting DNS servers: resolvconf is not installed (openresolv and systemd have one); " +
	"install it, or remove DNS from the file")

// setDNS adds a resolvconf entry. While it exists, only its servers are used (-x).
type setDNS struct {
	entry   string
	servers []conffile.Nameserver
	search  []string
}

func (s setDNS) String() string { return "resolvconf -a " + s.entry + " -m 0 -x" }

func (s setDNS) run(ctx context.Context, j *job) error {
	if j.Tools.Resolvconf == "" {
		return ErrNoResolvconf
	}
	if warning := j.Tools.PortWarning(s.servers); warning != "" {
		j.warn("%s", warning)
	}
	err := j.updateState(func(st *state) { st.DNS = true })
	if err == nil {
		_, err = pipe(ctx, s.text(), j.Tools.Resolvconf, "-a", s.entry, "-m", "0", "-x")
	}
	if err != nil {
		return errors.Join(err, s.undo().run(context.WithoutCancel(ctx), j))
	}
	return nil
}

// PortWarning returns a warning if a server has a port that resolvconf does not understand. Only
// systemd's does; with others the C library ignores such a server.
func (t Tools) PortWarning(servers []conffile.Nameserver) string {
	i := slices.IndexFunc(servers, func(n conffile.Nameserver) bool { return n.Port != 0 })
	path, err := filepath.EvalSymlinks(t.Resolvconf)
	if i < 0 || err == nil && filepath.Base(path) == "resolvectl" {
		return ""
	}
	return fmt.Sprintf("DNS: only systemd's resolvconf supports a port: programs ignore the name server %s", servers[i])
}

// text is in the format of resolv.conf(5).
func (s setDNS) text() string {
	var b strings.Builder
	for _, server := range s.servers {
		fmt.Fprintf(&b, "nameserver %s\n", server)
	}
	if len(s.search) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(s.search, " "))
	}
	return b.String()
}

func (s setDNS) undo() Step { return unsetDNS{s.entry} }

type unsetDNS struct{ entry string }

func (s unsetDNS) String() string { return "resolvconf -d " + s.entry + " -f" }

func (s unsetDNS) run(ctx context.Context, j *job) error {
	if j.Tools.Resolvconf == "" {
		return nil
	}
	_, err := pipe(ctx, "", j.Tools.Resolvconf, "-d", s.entry, "-f")
	return err
}

// dnsPrefix returns a prefix for entry names, so that Debian's resolvconf ranks the entry by its
// interface-order. The first line of that file with letters, digits or hyphens and a star, such as
// "tun*", gives "tun.".
func (r *Runner) dnsPrefix() string {
	b, err := fs.ReadFile(r.Root, "etc/resolvconf/interface-order")
	if err != nil {
		return ""
	}
	m := regexp.MustCompile(`(?m)^([A-Za-z0-9-]+)\*$`).FindSubmatch(b)
	if m == nil {
		return ""
	}
	return string(m[1]) + "."
}

// currentDNS returns the servers and search domains that resolvconf has for the interface. ok is false when they cannot
// be read.
func (j *job) currentDNS(ctx context.Context) (servers []conffile.Nameserver, search []string, ok bool) {
	entry := j.dnsPrefix() + j.Name
	var text string
	err := ErrNoResolvconf
	if j.Tools.Resolvconf != "" {
		text, err = pipe(ctx, "", j.Tools.Resolvconf, "-l", entry)
	}
	if err != nil {
		b, err := fs.ReadFile(j.Root, "etc/resolvconf/run/interface/"+entry)
		if err != nil {
			return nil, nil, false
		}
		text = string(b)
	}
	servers, search = parseResolv(text)
	return servers, search, true
}

// parseResolv reads the lines of resolv.conf(5) that setDNS writes, and ignores others.
func parseResolv(text string) (servers []conffile.Nameserver, search []string) {
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) == 2 && fields[0] == "nameserver":
			if server, ok := conffile.ParseNameserver(fields[1]); ok {
				servers = append(servers, server)
			}
		case len(fields) > 1 && fields[0] == "search":
			search = append(search, fields[1:]...)
		}
	}
	return servers, search
}
