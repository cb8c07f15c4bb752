#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# stage.sh DIR: writes the complete charts into DIR. The charts of the two modes share what is in agent/, and Helm packs no files from outside a
# chart. These have one place in the tree.
set -eu
deploy=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
charts=$(cd "$1" && pwd)
cd "$deploy/helm"
rm -rf "$charts/ropewalk-spread" "$charts/ropewalk-mesh" "$charts/ropewalk-crds"
for chart in ropewalk-spread ropewalk-mesh; do
  to=$charts/$chart
  cp -r agent "$to"
  cp -r "$chart/." "$to"
  cat "$chart/Chart.yaml" agent/Chart.yaml >"$to/Chart.yaml"
  cat "$chart/values.yaml" agent/values.yaml >"$to/values.yaml"
  sed "/^  \"properties\": {\$/r $chart/values.schema.part" agent/values.schema.json >"$to/values.schema.json"
  rm "$to/values.schema.part"
  cp ../grafana/*.json "$to/files"
  cp ../prometheus/rules.yml "$to/files"
done
cp -r ropewalk-crds "$charts"
mkdir "$charts/ropewalk-crds/files"
cp ../crd/ropewalk.io_*.yaml "$charts/ropewalk-crds/files"
