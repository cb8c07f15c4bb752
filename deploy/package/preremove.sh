#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The first argument is the action for dpkg, and for rpm the number of versions that stay: an upgrade stops nothing.
set -e
case "$1" in
remove | 0)
	if [ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ]; then
		systemctl stop 'ropewalk@*.service' 'ropewalk-spread@*.service' 'ropewalk-engine@*.service' || true
	fi
	;;
esac
