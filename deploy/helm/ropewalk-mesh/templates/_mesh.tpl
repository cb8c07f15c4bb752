{{- define "ropewalk.engineName" -}}
{{- $name := include "ropewalk.name" . }}
{{- if contains "ropewalk-mesh" $name }}{{ $name | replace "ropewalk-mesh" "ropewalk-engine" | trunc 63 | trimSuffix "-" }}{{ else }}{{ printf "%s-engine" ($name | trunc 56 | trimSuffix "-") }}{{ end }}
{{- end }}

{{- /* Refuses to rename the tunnel, unless a cleanup has completed on all nodes. Where Helm reads no cluster (helm template), there is nothing to compare with. */}}
{{- define "ropewalk.checkUpgrade" -}}
{{- $agents := lookup "apps/v1" "DaemonSet" .Release.Namespace (include "ropewalk.name" .) }}
{{- $args := list }}
{{- range dig "spec" "template" "spec" "containers" list $agents }}
{{- if eq .name "agent" }}{{ $args = .args | default list }}{{ end }}
{{- end }}
{{- $status := dig "status" dict $agents }}
{{- $nodes := $status.desiredNumberScheduled | int }}
{{- $rolledOut := and (eq (dig "metadata" "generation" 0 $agents | int) ($status.observedGeneration | int)) (eq ($status.updatedNumberScheduled | int) $nodes) (eq ($status.numberAvailable | int) $nodes) }}
{{- range $args }}
{{- if and (hasPrefix "--tunnel=" .) (ne . (printf "--tunnel=%s" $.Values.tunnel)) (not (and $rolledOut (has "cleanup" $args))) }}
{{- fail (printf "the tunnel cannot be renamed while nodes are in the mesh (now %s): the former one would stay on the nodes. Uninstall with the cleanup first" .) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "ropewalk.engineSelector" -}}
app.kubernetes.io/name: ropewalk-engine
app.kubernetes.io/instance: {{ .Release.Name | quote }}
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

{{- /* Where pod prefixes are read from. */}}
{{- define "ropewalk.podCIDRSource" -}}
{{- if ne .Values.podCIDRSource "auto" }}{{ .Values.podCIDRSource -}}
{{- else if .Capabilities.APIVersions.Has "cilium.io/v2/CiliumNode" }}cilium
{{- else if eq (include "ropewalk.calicoIPAM" .) "true" }}calico
{{- else if and (.Capabilities.APIVersions.Has "vpcresources.k8s.aws/v1alpha1/CNINode") (not .Values.cleanup.enabled) }}
{{- fail "this cluster's pods have addresses of the VPC (Amazon VPC CNI), which no API lists by node, so mode mesh cannot know which node has which pod: use the chart ropewalk-spread, or another network plugin. To install nevertheless, set podCIDRSource=node" }}
{{- else }}node
{{- end }}
{{- end }}

{{- /* Whether Calico assigns the pods' addresses. Its definitions are also there with another IPAM (Canal, host-local), but then there are no
blocks. Where Helm reads no cluster (helm template), the definitions decide. */}}
{{- define "ropewalk.calicoIPAM" -}}
{{- $live := lookup "v1" "Namespace" "" "kube-system" }}
{{- and (.Capabilities.APIVersions.Has "crd.projectcalico.org/v1/BlockAffinity") (or (not $live) (not (empty (lookup "crd.projectcalico.org/v1" "BlockAffinity" "" "").items))) }}
{{- end }}
