#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# stage.sh DIR: writes the complete charts into DIR. Helm packs no files from outside a chart, and these have one place in the tree.
set -eu
deploy=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
rm -rf "$1/ropewalk-agent" "$1/ropewalk-crds"
cp -r "$deploy/helm/ropewalk-agent" "$deploy/helm/ropewalk-crds" "$1"
cp "$deploy/grafana/ropewalk.json" "$1/ropewalk-agent/files/dashboard.json"
cp "$deploy/prometheus/rules.yml" "$1/ropewalk-agent/files"
mkdir "$1/ropewalk-crds/files"
cp "$deploy"/crd/ropewalk.io_*.yaml "$1/ropewalk-crds/files"
