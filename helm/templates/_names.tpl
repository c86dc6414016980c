{{- define "sluicegate.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{/* Leaves room for the longest suffix within the 63 characters of a Service's name. */}}
{{- define "sluicegate.fullname" -}}
{{- $name := include "sluicegate.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels that never change in a release, because the Deployment's selector cannot change. */}}
{{- define "sluicegate.releaseLabels" -}}
app.kubernetes.io/name: {{ include "sluicegate.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Selects only the server's pods: the test's pod is not an endpoint of the Service. */}}
{{- define "sluicegate.selectorLabels" -}}
{{ include "sluicegate.releaseLabels" . }}
app.kubernetes.io/component: server
{{- end -}}

{{- define "sluicegate.ownLabels" -}}
{{ include "sluicegate.releaseLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{- define "sluicegate.labels" -}}
{{ include "sluicegate.labelsWith" (dict "root" . "more" dict) }}
{{- end -}}

{{/* Labels of an object with additional ones, which take precedence. */}}
{{- define "sluicegate.labelsWith" -}}
{{- $own := include "sluicegate.ownLabels" .root | fromYaml -}}
{{- merge (dict) .more .root.Values.commonLabels $own | toYaml -}}
{{- end -}}

{{- define "sluicegate.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "sluicegate.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "sluicegate.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ default $.Chart.AppVersion .tag }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Address for Envoy. */}}
{{- define "sluicegate.host" -}}
{{ include "sluicegate.fullname" . }}.{{ .Release.Namespace }}.svc
{{- end -}}

{{- define "sluicegate.limitsName" -}}
{{- default (printf "%s-limits" (include "sluicegate.fullname" .)) .Values.existingConfigMap -}}
{{- end -}}
