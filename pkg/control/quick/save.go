// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
)

// Save writes the interface's present configuration to its file. Keys and peers come from the
// daemon; addresses, DNS and, if the file has one, the MTU from the host; the rest from the file.
// Comments are lost. The file is replaced atomically, and only its owner can read it. Errors:
// ErrNotWireGuard.
func (r *Runner) Save(ctx context.Context, i Interface) error {
	return (&job{Runner: r, Interface: i}).save(ctx)
}

func (j *job) save(ctx context.Context) error {
	status, err := j.status()
	if err != nil {
		return err
	}
	report, err := j.report()
	if err != nil {
		return err
	}
	status.AddNames(report.Names)
	if report.PostQuantum != nil {
		status.AddPostQuantum(*report.PostQuantum)
	}
	j.echo("wg showconf " + j.Name)
	file := conffile.FromStatus(status, report.zoneName)
	running := file.Interface
	file.Interface = j.File.Interface
	file.Interface.PrivateKey = running.PrivateKey
	file.Interface.ListenPort = running.ListenPort
	file.Interface.FwMark = running.FwMark
	if err := j.there(func() error { return j.hostSettings(ctx, &file.Interface) }); err != nil {
		return err
	}
	var b bytes.Buffer
	if err := file.Format(&b); err != nil {
		return fmt.Errorf("saving %s: %w", j.Name, err)
	}
	return replaceFile(j.Path, append(bytes.TrimRight(b.Bytes(), "\n"), '\n'))
}

// report requests the report of the interface's daemon. The error is ErrUnresponsive for a daemon that hangs.
func (j *job) report() (r deviceReport, err error) {
	c, err := j.Sockets.Dial(j.Name)
	if err != nil {
		return r, j.unlessHanging(err)
	}
	defer c.Close()
	timeout := time.AfterFunc(j.timeout(), func() { _ = c.Close() })
	defer timeout.Stop()
	switch err := j.unlessHanging(c.Stats(&r)); {
	case errors.Is(err, ErrUnresponsive):
		return deviceReport{}, err
	case err != nil: // other daemons than ropewalk have none
		return deviceReport{}, nil
	}
	return r, nil
}

// hostSettings replaces addresses, DNS and MTU by the host's.
func (j *job) hostSettings(ctx context.Context, conf *conffile.Interface) error {
	addrs, err := hostnet.Addresses(j.Name)
	if err != nil {
		return err
	}
	conf.Address = addrs
	if servers, search, ok := j.currentDNS(ctx); ok {
		conf.DNS, conf.DNSSearch = servers, search
	}
	if conf.MTU != 0 {
		link, err := hostnet.FindLink(j.Name)
		if err != nil {
			return err
		}
		conf.MTU = link.MTU
	}
	return nil
}

// zoneName is zoneName, also of a link that does not exist at present.
func (r *deviceReport) zoneName(index uint32) string {
	for name, former := range r.AbsentLinks {
		if former == int(index) {
			return name
		}
	}
	return zoneName(index)
}

// zoneName returns the name of an interface, for the zone of a link-local endpoint.
func zoneName(index uint32) string {
	ifi, err := net.InterfaceByIndex(int(index))
	if err != nil {
		return strconv.FormatUint(uint64(index), 10)
	}
	return ifi.Name
}
