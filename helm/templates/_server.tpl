{{/* A value of a flag as text: a list joined by commas, a number without an exponent. */}}
{{- define "sluicegate.text" -}}
{{- if kindIs "slice" . -}}
{{- join "," . -}}
{{- else if and (kindIs "float64" .) (eq (floor .) .) -}}
{{- printf "%d" (int64 .) -}}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end -}}

{{/* Folder of all mounts. */}}
{{- define "sluicegate.folder" -}}/etc/sluicegate{{- end -}}

{{/* Address of a listener on all interfaces of the pod. */}}
{{- define "sluicegate.everywhere" -}}
{{- ternary "[::]" "0.0.0.0" .Values.ipv6 -}}
{{- end -}}

{{/* Host of --admin-listen: loopback, unless the listener is exposed. */}}
{{- define "sluicegate.adminHost" -}}
{{- if .Values.admin.exposed -}}
{{ include "sluicegate.everywhere" . }}
{{- else -}}
{{- ternary "[::1]" "127.0.0.1" .Values.ipv6 -}}
{{- end -}}
{{- end -}}

{{/* The arguments of the container, as a list. */}}
{{- define "sluicegate.args" -}}
{{- $folder := include "sluicegate.folder" . -}}
- serve
- --limits={{ $folder }}/limits
- "--grpc-listen={{ include "sluicegate.everywhere" . }}:{{ .Values.grpc.port }}"
- "--http-listen={{ include "sluicegate.everywhere" . }}:{{ .Values.http.port }}"
{{- with .Values.grpc.tls }}
{{- if .enabled }}
- --grpc-tls-cert={{ $folder }}/grpc-tls/tls.crt
- --grpc-tls-key={{ $folder }}/grpc-tls/tls.key
{{- if .clientCaSecret.name }}
- --grpc-tls-client-ca={{ $folder }}/grpc-client-ca/ca.crt
{{- end }}
{{- with .clientNames }}
- {{ printf "--grpc-tls-client-names=%s" (join "," .) | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- if .Values.admin.enabled }}
- "--admin-listen={{ include "sluicegate.adminHost" . }}:{{ .Values.admin.port }}"
{{- if include "sluicegate.adminTokenSecret" . }}
- --admin-token-file={{ $folder }}/admin-token/token
{{- end }}
{{- with .Values.admin.tls }}
{{- if .enabled }}
- --admin-tls-cert={{ $folder }}/admin-tls/tls.crt
- --admin-tls-key={{ $folder }}/admin-tls/tls.key
{{- if .clientCaSecret.name }}
- --admin-tls-client-ca={{ $folder }}/admin-client-ca/ca.crt
{{- end }}
{{- with .clientNames }}
- {{ printf "--admin-tls-client-names=%s" (join "," .) | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- else }}
- --admin-listen=off
{{- end }}
{{- if .Values.usage.enabled }}
- "--usage-listen={{ include "sluicegate.everywhere" . }}:{{ .Values.usage.port }}"
- --usage-tenants-file={{ $folder }}/usage-tenants/tenants.json
{{- with .Values.usage.tls }}
{{- if .enabled }}
- --usage-tls-cert={{ $folder }}/usage-tls/tls.crt
- --usage-tls-key={{ $folder }}/usage-tls/tls.key
{{- if .clientCaSecret.name }}
- --usage-tls-client-ca={{ $folder }}/usage-client-ca/ca.crt
{{- end }}
{{- with .clientNames }}
- {{ printf "--usage-tls-client-names=%s" (join "," .) | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- if eq .Values.store "memory" }}
- --store=memory
{{- else }}
{{- with .Values.redis }}
{{- if .url }}
- {{ printf "--store=%s" .url | quote }}
{{- end }}
{{- with .username }}
- {{ printf "--redis-username=%s" . | quote }}
{{- end }}
{{- if include "sluicegate.redisPasswordSecret" $ }}
- --redis-password-file={{ $folder }}/redis-password/password
{{- end }}
{{- if .tls.caSecret.name }}
- --redis-tls-ca={{ $folder }}/redis-ca/ca.crt
{{- end }}
{{- if .tls.certSecret }}
- --redis-tls-cert={{ $folder }}/redis-tls/tls.crt
- --redis-tls-key={{ $folder }}/redis-tls/tls.key
{{- end }}
{{- end }}
{{- end }}
- --drain-delay={{ include "sluicegate.text" .Values.drain.delaySeconds }}s
- --drain-timeout={{ include "sluicegate.text" .Values.drain.timeoutSeconds }}s
- {{ printf "--log-level=%s" .Values.log.level | quote }}
- --log-format={{ .Values.log.format }}
{{- if .Values.keyHash.existingSecret.name }}
- --key-hash-salt-file={{ $folder }}/key-hash/salt
{{- end }}
{{- with .Values.otlp }}
{{- if .endpoint }}
- {{ printf "--otlp-endpoint=%s" .endpoint | quote }}
- --otlp-metrics-interval={{ .metricsInterval }}
- --trace-ratio={{ include "sluicegate.text" .traceRatio }}
{{- if .caSecret.name }}
- --otlp-tls-ca={{ $folder }}/otlp-ca/ca.crt
{{- end }}
{{- end }}
{{- end }}
{{- range $flag, $value := .Values.settings }}
- {{ printf "--%s=%s" $flag (include "sluicegate.text" $value) | quote }}
{{- end }}
{{- end -}}

{{/* Secret of the admin token; empty if there is none. */}}
{{- define "sluicegate.adminTokenSecret" -}}
{{- with .Values.admin -}}
{{- if .enabled -}}
{{- if .token -}}
{{ include "sluicegate.fullname" $ }}-admin
{{- else -}}
{{ .existingSecret.name }}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Mounts as a JSON list of folder, kind, object, and items (key of the object to file). */}}
{{- define "sluicegate.mounts" -}}
{{- $mounts := list (dict "folder" "limits" "kind" "configMap" "object" (include "sluicegate.limitsName" .)) -}}
{{- $pair := dict "tls.crt" "tls.crt" "tls.key" "tls.key" -}}
{{- with .Values.grpc.tls -}}
{{- if .enabled -}}
{{- $mounts = append $mounts (dict "folder" "grpc-tls" "kind" "secret" "object" .secretName "items" $pair) -}}
{{- with .clientCaSecret -}}{{- if .name -}}
{{- $mounts = append $mounts (dict "folder" "grpc-client-ca" "kind" "secret" "object" .name "items" (dict .key "ca.crt")) -}}
{{- end -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- with .Values.admin -}}
{{- if .enabled -}}
{{- with include "sluicegate.adminTokenSecret" $ -}}
{{- $key := ternary "token" $.Values.admin.existingSecret.tokenKey (not (empty $.Values.admin.token)) -}}
{{- $mounts = append $mounts (dict "folder" "admin-token" "kind" "secret" "object" . "items" (dict $key "token")) -}}
{{- end -}}
{{- with .tls -}}
{{- if .enabled -}}
{{- $mounts = append $mounts (dict "folder" "admin-tls" "kind" "secret" "object" .secretName "items" $pair) -}}
{{- with .clientCaSecret -}}{{- if .name -}}
{{- $mounts = append $mounts (dict "folder" "admin-client-ca" "kind" "secret" "object" .name "items" (dict .key "ca.crt")) -}}
{{- end -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with .Values.usage -}}
{{- if .enabled -}}
{{- $mounts = append $mounts (dict "folder" "usage-tenants" "kind" "secret" "object" .tenantsSecret.name "items" (dict .tenantsSecret.key "tenants.json")) -}}
{{- with .tls -}}
{{- if .enabled -}}
{{- $mounts = append $mounts (dict "folder" "usage-tls" "kind" "secret" "object" .secretName "items" $pair) -}}
{{- with .clientCaSecret -}}{{- if .name -}}
{{- $mounts = append $mounts (dict "folder" "usage-client-ca" "kind" "secret" "object" .name "items" (dict .key "ca.crt")) -}}
{{- end -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if eq .Values.store "redis" -}}
{{- with include "sluicegate.redisPasswordSecret" . -}}
{{- $key := ternary "password" (include "sluicegate.redisPasswordKey" $) (not (empty $.Values.redis.password)) -}}
{{- $mounts = append $mounts (dict "folder" "redis-password" "kind" "secret" "object" . "items" (dict $key "password")) -}}
{{- end -}}
{{- with .Values.redis.tls -}}
{{- with .caSecret -}}{{- if .name -}}
{{- $mounts = append $mounts (dict "folder" "redis-ca" "kind" "secret" "object" .name "items" (dict .key "ca.crt")) -}}
{{- end -}}{{- end -}}
{{- with .certSecret -}}
{{- $mounts = append $mounts (dict "folder" "redis-tls" "kind" "secret" "object" . "items" $pair) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with .Values.keyHash.existingSecret -}}
{{- if .name -}}
{{- $mounts = append $mounts (dict "folder" "key-hash" "kind" "secret" "object" .name "items" (dict .saltKey "salt")) -}}
{{- end -}}
{{- end -}}
{{- with .Values.otlp -}}
{{- if and .endpoint .caSecret.name -}}
{{- $mounts = append $mounts (dict "folder" "otlp-ca" "kind" "secret" "object" .caSecret.name "items" (dict .caSecret.key "ca.crt")) -}}
{{- end -}}
{{- end -}}
{{- $mounts | toJson -}}
{{- end -}}

{{/*
A kubelet probe: gRPC health of this service, or over HTTP if gRPC uses TLS, which Kubernetes' gRPC probe does not
support.
*/}}
{{- define "sluicegate.probe" -}}
{{- if .root.Values.grpc.tls.enabled -}}
httpGet:
  path: {{ .path }}
  port: http
{{- else -}}
grpc:
  port: {{ .root.Values.grpc.port }}
  service: {{ .service }}
{{- end }}
{{ toYaml .timing }}
{{- end -}}

{{/* Grace period. The last seconds are for HTTP, the admin and the usage listener, and telemetry that is not sent yet. */}}
{{- define "sluicegate.graceSeconds" -}}
{{- add .Values.drain.delaySeconds .Values.drain.timeoutSeconds 5 -}}
{{- end -}}

{{/* Not empty if the store's address is in a Secret. */}}
{{- define "sluicegate.storeFromSecret" -}}
{{- if and (eq .Values.store "redis") .Values.redis.existingSecret.name -}}
{{ .Values.redis.existingSecret.urlKey }}
{{- end -}}
{{- end -}}
