{{/* Secret of the password; empty if there is none. */}}
{{- define "sluicegate.redisPasswordSecret" -}}
{{- with .Values.redis -}}
{{- if .password -}}
{{ include "sluicegate.fullname" $ }}-redis
{{- else if include "sluicegate.redisPasswordKey" $ -}}
{{ .existingSecret.name }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Key of the password in an existing Secret. Empty if there is none; the address may contain the password. */}}
{{- define "sluicegate.redisPasswordKey" -}}
{{- with .Values.redis.existingSecret -}}
{{- if .name -}}
{{ .passwordKey | default (ternary "" "password" (not (empty .urlKey))) }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Ports of Redis as a JSON list: those in the address, and those of servers found through it. */}}
{{- define "sluicegate.redisPorts" -}}
{{- $ports := list -}}
{{- with .Values.networkPolicy.redisPorts -}}
{{- range . -}}{{- $ports = append $ports (int64 .) -}}{{- end -}}
{{- else -}}
{{- $url := $.Values.redis.url -}}
{{- $sentinel := regexMatch "^rediss?-sentinel://" $url -}}
{{- $hosts := regexReplaceAll "^[a-z-]+://([^@/]*@)?([^/]*).*$" $url "${2}" -}}
{{- range splitList "," $hosts -}}
{{- $port := regexFind ":[0-9]+$" . | trimPrefix ":" | default (ternary "26379" "6379" $sentinel) -}}
{{- $ports = append $ports ($port | int64) -}}
{{- end -}}
{{- if $sentinel -}}{{- $ports = append $ports (int64 6379) -}}{{- end -}}
{{- end -}}
{{- $ports | uniq | toJson -}}
{{- end -}}
