#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# After installation, upgrade and removal, by dpkg or rpm. Running tunnels keep the old program until the administrator restarts them or
# runs `ropewalk upgrade`.
set -e
if [ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ]; then
	systemctl daemon-reload || true
fi
