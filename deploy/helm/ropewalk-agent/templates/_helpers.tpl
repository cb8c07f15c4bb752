{{- define "ropewalk.name" -}}
{{- if .Values.nameOverride }}{{ .Values.nameOverride }}{{ else if contains "ropewalk-agent" .Release.Name }}{{ .Release.Name | trunc 63 | trimSuffix "-" }}{{ else }}{{ printf "%s-ropewalk-agent" .Release.Name | trunc 63 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "ropewalk.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "ropewalk.name" .) }}
{{- end }}

{{- define "ropewalk.selector" -}}
app.kubernetes.io/name: ropewalk-agent
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "ropewalk.labels" -}}
{{ include "ropewalk.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "ropewalk.image" -}}
{{- with .Values.image -}}
{{- $_ := required "set image.repository to the name of the image in your registry, such as registry.example.com/ropewalk-agent" .repository }}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end }}

{{- /* The modes whose rights and mounts the agents have. A cleanup removes what agents of either mode left. */}}
{{- define "ropewalk.modes" -}}
{{- if .Values.cleanup.enabled }}spread mesh{{ else }}{{ .Values.mode }}{{ end }}
{{- end }}

{{- /* Whether the release runs the tunnels. During a cleanup it does as well: they carry packets until the last node has left. */}}
{{- define "ropewalk.hasEngine" -}}
{{- and .Values.engine.enabled (eq .Values.mode "mesh") }}
{{- end }}

{{- define "ropewalk.engineName" -}}
{{- $name := include "ropewalk.name" . }}
{{- if contains "ropewalk-agent" $name }}{{ $name | replace "ropewalk-agent" "ropewalk-engine" | trunc 63 | trimSuffix "-" }}{{ else }}{{ printf "%s-engine" ($name | trunc 56 | trimSuffix "-") }}{{ end }}
{{- end }}

{{- /* Refuses an upgrade that interrupts the tunnels of all nodes, unless a cleanup has completed on them. Where Helm reads no cluster
(helm template), there is nothing to compare with. */}}
{{- define "ropewalk.checkUpgrade" -}}
{{- $agents := lookup "apps/v1" "DaemonSet" .Release.Namespace (include "ropewalk.name" .) }}
{{- $args := list }}
{{- range dig "spec" "template" "spec" "containers" list $agents }}
{{- if eq .name "agent" }}{{ $args = .args | default list }}{{ end }}
{{- end }}
{{- $status := dig "status" dict $agents }}
{{- $nodes := $status.desiredNumberScheduled | int }}
{{- $rolledOut := and (eq (dig "metadata" "generation" 0 $agents | int) ($status.observedGeneration | int)) (eq ($status.updatedNumberScheduled | int) $nodes) (eq ($status.numberAvailable | int) $nodes) }}
{{- if not (and $rolledOut (has "cleanup" $args)) }}
{{- if and .Values.engine.enabled (not .Values.mesh.leave) (ne (include "ropewalk.hasEngine" .) "true") (lookup "apps/v1" "DaemonSet" .Release.Namespace (include "ropewalk.engineName" .)) }}
{{- fail (printf "this upgrade deletes the engines of all nodes at once, and nodes in mode mesh drop packets until their agents are replaced. First run the cleanup with mode=mesh and cleanup.enabled=true, and wait for: kubectl -n %s rollout status daemonset/%s. If no node is in mode mesh, set mesh.leave=true" .Release.Namespace (include "ropewalk.name" .)) }}
{{- end }}
{{- range $args }}
{{- if and (hasPrefix "--tunnel=" .) (contains "mesh" (include "ropewalk.modes" $)) (ne . (printf "--tunnel=%s" $.Values.mesh.tunnel)) }}
{{- fail (printf "mesh.tunnel cannot be renamed while nodes may be in mode mesh (now %s): the former tunnel would stay on the nodes. Uninstall with the cleanup first" .) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "ropewalk.engineSelector" -}}
app.kubernetes.io/name: ropewalk-engine
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- /* Selects agents and engines. */}}
{{- define "ropewalk.allPods" -}}
matchLabels:
  app.kubernetes.io/instance: {{ .Release.Name | quote }}
matchExpressions:
  - key: app.kubernetes.io/name
    operator: In
    values: [ropewalk-agent, ropewalk-engine]
{{- end }}

{{- define "ropewalk.engineLabels" -}}
{{ include "ropewalk.engineSelector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- /* The engine's own tag keeps its pods while the agents are updated. */}}
{{- define "ropewalk.engineImage" -}}
{{- with .Values.engine.image.tag }}{{ $.Values.image.repository }}:{{ . }}{{ else }}{{ include "ropewalk.image" . }}{{ end -}}
{{- end }}

{{- define "ropewalk.engineCapabilities" -}}
- NET_ADMIN
- BPF
- NET_RAW
- SYS_NICE
{{- with .Values.engine.capabilities }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "ropewalk.capabilities" -}}
{{- if .Values.capabilities }}
{{- toYaml .Values.capabilities }}
{{- else -}}
- NET_ADMIN
- BPF
{{- if and (contains "spread" (include "ropewalk.modes" .)) (not .Values.cleanup.enabled) }}
- PERFMON
{{- end }}
{{- end }}
{{- end }}

{{- /* The node's own address, so that no other of the node's is bound; the brackets are for IPv6 and do no harm. */}}
{{- define "ropewalk.listen" -}}
{{- if .Values.metrics.enabled }}[$(HOST_IP)]{{ else }}127.0.0.1{{ end }}:{{ .Values.metrics.port }}
{{- end }}

{{- define "ropewalk.args" -}}
{{- $modes := include "ropewalk.modes" . }}
{{- if .Values.cleanup.enabled -}}
- cleanup
- --stay
{{- if .Values.cleanup.keys }}
- --keys
{{- end }}
{{- else -}}
- --mode={{ .Values.mode }}
{{- if and .Values.port (eq .Values.mode "spread") }}
- --port={{ .Values.port }}
{{- end }}
{{- with .Values.spreadPorts }}
- --spread-ports={{ . }}
{{- end }}
{{- end }}
- --bpf-fs=/run/ropewalk/bpf
- --key-dir=/var/lib/ropewalk/keys
{{- if contains "mesh" $modes }}
- --tunnel={{ .Values.mesh.tunnel }}
{{- if not .Values.cleanup.enabled }}
- --reflect-port={{ .Values.engine.reflectPort }}
{{- with include "ropewalk.podCIDRSource" . }}
{{- if ne . "node" }}
- --pod-cidr-source={{ . }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
- --listen=$(LISTEN)
- --log-level={{ .Values.logLevel }}
{{- if not .Values.cleanup.enabled }}
{{- range .Values.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Where pod prefixes are read from, in mesh mode. */}}
{{- define "ropewalk.podCIDRSource" -}}
{{- if ne .Values.mesh.podCIDRSource "auto" }}{{ .Values.mesh.podCIDRSource -}}
{{- else if .Capabilities.APIVersions.Has "cilium.io/v2/CiliumNode" }}cilium
{{- else if eq (include "ropewalk.calicoIPAM" .) "true" }}calico
{{- else if and (.Capabilities.APIVersions.Has "vpcresources.k8s.aws/v1alpha1/CNINode") (eq .Values.mode "mesh") (not .Values.cleanup.enabled) }}
{{- fail "this cluster's pods have addresses of the VPC (Amazon VPC CNI), which no API lists by node, so mode mesh cannot know which node has which pod: use mode spread, or another network plugin. To install nevertheless, set mesh.podCIDRSource=node" }}
{{- else }}node
{{- end }}
{{- end }}

{{- /* Whether Calico assigns the pods' addresses. Its definitions are also there with another IPAM (Canal, host-local), but then there are no
blocks. Where Helm reads no cluster (helm template), the definitions decide. */}}
{{- define "ropewalk.calicoIPAM" -}}
{{- $live := lookup "v1" "Namespace" "" "kube-system" }}
{{- and (.Capabilities.APIVersions.Has "crd.projectcalico.org/v1/BlockAffinity") (or (not $live) (not (empty (lookup "crd.projectcalico.org/v1" "BlockAffinity" "" "").items))) }}
{{- end }}

{{- define "ropewalk.probe" -}}
httpGet:
{{- if not .Values.metrics.enabled }}
  host: 127.0.0.1
{{- end }}
  port: {{ .Values.metrics.port }}
{{- end }}

{{- /* The error of a chart without the files that make charts adds. */}}
{{- define "ropewalk.incomplete" -}}
this chart is incomplete: run make charts, then install build/charts/ropewalk-agent
{{- end }}
