{{- define "millrace.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{/* Services and topologies may have no dot in their names, which a release may. */}}
{{- define "millrace.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | replace "." "-" | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "millrace.name" .) .Release.Name -}}
{{- .Release.Name | replace "." "-" | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "millrace.name" .) | replace "." "-" | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Of Services, which have to begin with a letter. */}}
{{- define "millrace.serviceName" -}}
{{- $name := include "millrace.fullname" . -}}
{{- ternary (printf "millrace-%s" $name) $name (regexMatch "^[0-9]" $name) | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{/* Of what is in no namespace, so that releases in several namespaces do not meet: what stands
     between the two is in no name of either. */}}
{{- define "millrace.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "millrace.fullname" .) -}}
{{- end -}}

{{/* Whoever may run a pod has its namespace's account "default", which so is given no rights. */}}
{{- define "millrace.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "millrace.fullname" .) .Values.serviceAccount.name -}}
{{- else if and .Values.rbac.create (not .Values.serviceAccount.name) -}}
{{- fail "set serviceAccount.name: with serviceAccount.create=false all pods without an account of their own would have the operator's rights" -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "millrace.selector" -}}
app.kubernetes.io/name: {{ include "millrace.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "millrace.labels" -}}
{{ include "millrace.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: millrace
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* No image is published: whoever owned the name of a default could run code with the operator's
     rights. */}}
{{- define "millrace.imagesNamed" -}}
{{- $missing := list -}}
{{- range $name, $image := dict "image" .Values.image "topologyPods.runtimeImage" .Values.topologyPods.runtimeImage "topologyPods.stateServerImage" .Values.topologyPods.stateServerImage -}}
{{- if not $image.repository -}}
{{- $missing = append $missing (printf "%s.repository" $name) -}}
{{- end -}}
{{- end -}}
{{- if $missing -}}
{{- fail (printf "set %s: no image is published, so build the images and put them where your nodes find them, as docs/install.md says" (join ", " $missing)) -}}
{{- end -}}
{{- end -}}

{{/* An image by its digest where there is one, else by its tag, else by the release of the chart. */}}
{{- define "millrace.image" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (default .chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}

{{/* Where the topology of the test is made: a namespace that the operator sees to. */}}
{{- define "millrace.trialNamespace" -}}
{{- if .Values.watchNamespaces -}}
{{- first .Values.watchNamespaces -}}
{{- else -}}
{{- .Release.Namespace -}}
{{- end -}}
{{- end -}}

{{- define "millrace.subject" -}}
- kind: ServiceAccount
  name: {{ include "millrace.serviceAccount" . | quote }}
  namespace: {{ .Release.Namespace | quote }}
{{- end -}}

{{/* What the operator may do with the topologies of a namespace. */}}
{{- define "millrace.topologyRights" -}}
{{- $rights := .Files.Get "files/rights.yaml" | fromYaml -}}
{{ toYaml $rights.topologies }}
{{- if .Values.rbac.ownerReferences }}
{{ toYaml $rights.ownerReferences }}
{{- end }}
{{- end -}}
