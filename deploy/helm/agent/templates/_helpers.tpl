{{- define "ropewalk.name" -}}
{{- if .Values.nameOverride }}{{ .Values.nameOverride }}{{ else if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 63 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- /* Whether the release runs tunnels, in pods of their own. */}}
{{- define "ropewalk.hasEngine" -}}
{{- dig "engine" "enabled" false .Values.AsMap }}
{{- end }}

{{- define "ropewalk.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "ropewalk.name" .) }}
{{- end }}

{{- define "ropewalk.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
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

{{- /* The agents' mode. There is a chart for each. */}}
{{- define "ropewalk.mode" -}}
{{- trimPrefix "ropewalk-" .Chart.Name }}
{{- end }}

{{- /* Selects agents and engines. */}}
{{- define "ropewalk.allPods" -}}
matchLabels:
  app.kubernetes.io/instance: {{ .Release.Name | quote }}
matchExpressions:
  - key: app.kubernetes.io/name
    operator: In
    values: [{{ .Chart.Name }}{{ if eq (include "ropewalk.mode" .) "mesh" }}, ropewalk-engine{{ end }}]
{{- end }}

{{- define "ropewalk.capabilities" -}}
{{- if .Values.capabilities }}
{{- toYaml .Values.capabilities }}
{{- else -}}
- NET_ADMIN
- BPF
{{- if and (eq (include "ropewalk.mode" .) "spread") (not .Values.cleanup.enabled) }}
- PERFMON
{{- end }}
{{- end }}
{{- end }}

{{- /* The node's own address, so that no other of the node's is bound; the brackets are for IPv6 and do no harm. */}}
{{- define "ropewalk.listen" -}}
{{- if .Values.metrics.enabled }}[$(HOST_IP)]{{ else }}127.0.0.1{{ end }}:{{ .Values.metrics.port }}
{{- end }}

{{- define "ropewalk.args" -}}
{{- if .Values.cleanup.enabled -}}
- cleanup
- --stay
{{- if .Values.cleanup.keys }}
- --keys
{{- end }}
{{- else -}}
- --mode={{ include "ropewalk.mode" . }}
{{- with .Values.port }}
- --port={{ . }}
{{- end }}
{{- with .Values.spreadPorts }}
- --spread-ports={{ . }}
{{- end }}
{{- end }}
- --bpf-fs=/run/ropewalk/bpf
- --key-dir=/var/lib/ropewalk/keys
{{- if eq (include "ropewalk.mode" .) "mesh" }}
- --tunnel={{ .Values.tunnel }}
{{- if not .Values.cleanup.enabled }}
- --reflect-port={{ .Values.engine.reflectPort }}
{{- if .Values.startupTaint }}
- --startup-taint
{{- end }}
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

{{- define "ropewalk.probe" -}}
httpGet:
{{- if not .Values.metrics.enabled }}
  host: 127.0.0.1
{{- end }}
  port: {{ .Values.metrics.port }}
{{- end }}

{{- define "ropewalk.hasSCC" -}}
{{- or (eq .Values.scc "on") (and (eq .Values.scc "auto") (.Capabilities.APIVersions.Has "security.openshift.io/v1")) }}
{{- end }}

{{- /* The ports of metrics, by container. */}}
{{- define "ropewalk.metricsPorts" -}}
agent: {{ .Values.metrics.port }}
{{- if eq (include "ropewalk.mode" .) "mesh" }}
engine: {{ .Values.engine.metricsPort }}
{{- end }}
{{- end }}
