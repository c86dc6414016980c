{{/* Checks that the schema cannot express, or not with a helpful message. Each error names the values and the fix. */}}
{{- define "sluicegate.validate" -}}
{{- include "sluicegate.validateStore" . -}}
{{- include "sluicegate.validateRedis" . -}}
{{- include "sluicegate.validateListener" (dict "name" "grpc" "tls" .Values.grpc.tls) -}}
{{- include "sluicegate.validateListener" (dict "name" "admin" "tls" .Values.admin.tls) -}}
{{- include "sluicegate.validateListener" (dict "name" "usage" "tls" .Values.usage.tls) -}}
{{- include "sluicegate.validateAdmin" . -}}
{{- include "sluicegate.validatePorts" . -}}
{{- include "sluicegate.validateService" . -}}
{{- include "sluicegate.validateLimits" . -}}
{{- include "sluicegate.validateScaling" . -}}
{{- include "sluicegate.validateDisruptions" . -}}
{{- include "sluicegate.validateTelemetry" . -}}
{{- include "sluicegate.validatePods" . -}}
{{- end -}}

{{- define "sluicegate.validateStore" -}}
{{- if eq .Values.store "memory" -}}
{{- if .Values.autoscaling.enabled -}}
{{- fail "autoscaling.enabled: with store: memory each pod counts for itself, so each additional pod would admit the whole limit again; set store: redis" -}}
{{- end -}}
{{- if gt (int .Values.replicaCount) 1 -}}
{{- fail (printf "replicaCount: %d: with store: memory each pod counts for itself, so each additional pod would admit the whole limit again; set store: redis, or replicaCount: 1" (int .Values.replicaCount)) -}}
{{- end -}}
{{- with .Values.redis -}}
{{- if or .url .password .existingSecret.name -}}
{{- fail "redis is set, but store is memory; set store: redis" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "sluicegate.validateRedis" -}}
{{- if eq .Values.store "redis" -}}
{{- with .Values.redis -}}
{{- $fromSecret := and .existingSecret.name .existingSecret.urlKey -}}
{{- if and $fromSecret .url -}}
{{- fail "redis.url and redis.existingSecret.urlKey: only one may give the address" -}}
{{- end -}}
{{- if not (or $fromSecret .url) -}}
{{- fail "store: redis needs redis.url, or redis.existingSecret.name with urlKey" -}}
{{- end -}}
{{- if regexMatch "^[a-z-]+://[^/]*:[^/]*@" .url -}}
{{- fail "redis.url has a password, which is readable in the pod's command line; use redis.existingSecret (urlKey for the whole address)" -}}
{{- end -}}
{{- if and .password .existingSecret.name -}}
{{- fail "redis.password and redis.existingSecret.name: only one may give the password" -}}
{{- end -}}
{{- if and .username (not (include "sluicegate.redisPasswordSecret" $)) -}}
{{- fail "redis.username needs a password: redis.existingSecret, or redis.password" -}}
{{- end -}}
{{- if and .url (not (hasPrefix "rediss" .url)) (or .tls.caSecret.name .tls.certSecret) -}}
{{- fail "redis.tls is set, but redis.url does not ask for TLS; use rediss://, rediss-cluster:// or rediss-sentinel://" -}}
{{- end -}}
{{- if and $fromSecret $.Values.networkPolicy.enabled (not $.Values.networkPolicy.redisPorts) -}}
{{- fail "networkPolicy.redisPorts is needed: the address of Redis, with its ports, is in a Secret" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "sluicegate.validateListener" -}}
{{- $name := .name -}}
{{- with .tls -}}
{{- if and .enabled (not .secretName) -}}
{{- fail (printf "%s.tls.enabled needs %s.tls.secretName" $name $name) -}}
{{- end -}}
{{- if and (not .enabled) (or .secretName .clientCaSecret.name .clientNames) -}}
{{- fail (printf "%s.tls is set, but not on; set %s.tls.enabled" $name $name) -}}
{{- end -}}
{{- if and .clientNames (not .clientCaSecret.name) -}}
{{- fail (printf "%s.tls.clientNames needs %s.tls.clientCaSecret.name" $name $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "sluicegate.validateAdmin" -}}
{{- with .Values.admin -}}
{{- if and .token .existingSecret.name -}}
{{- fail "admin.token and admin.existingSecret.name: only one may give the token" -}}
{{- end -}}
{{- if .exposed -}}
{{- if not .enabled -}}
{{- fail "admin.exposed needs admin.enabled" -}}
{{- end -}}
{{- if not .tls.enabled -}}
{{- fail "admin.exposed needs admin.tls: anyone who reads the network could act as an operator" -}}
{{- end -}}
{{- if not (or .token .existingSecret.name .tls.clientCaSecret.name) -}}
{{- fail "admin.exposed needs a token (admin.existingSecret) or client certificates (admin.tls.clientCaSecret): any pod in the cluster could act as an operator" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "sluicegate.validatePorts" -}}
{{- $ports := list (int .Values.grpc.port) (int .Values.http.port) -}}
{{- if .Values.admin.enabled -}}{{- $ports = append $ports (int .Values.admin.port) -}}{{- end -}}
{{- $names := "grpc.port, http.port and admin.port" -}}
{{- if .Values.usage.enabled -}}
{{- $ports = append $ports (int .Values.usage.port) -}}
{{- $names = "grpc.port, http.port, admin.port and usage.port" -}}
{{- if not .Values.usage.tenantsSecret.name -}}
{{- fail "usage.enabled needs usage.tenantsSecret.name: the file says who may ask" -}}
{{- end -}}
{{- end -}}
{{- if ne (len $ports) (len (uniq $ports)) -}}
{{- fail (printf "%s must differ: %s" $names (join ", " $ports)) -}}
{{- end -}}
{{- end -}}

{{- define "sluicegate.validateService" -}}
{{- with .Values.service -}}
{{- if and .loadBalancerSourceRanges (ne .type "LoadBalancer") -}}
{{- fail (printf "service.loadBalancerSourceRanges: a Service of type %s admits every client; set service.type: LoadBalancer" .type) -}}
{{- end -}}
{{- if eq .type "ClusterIP" -}}
{{- if .externalTrafficPolicy -}}
{{- fail "service.externalTrafficPolicy: a Service of type ClusterIP gets no traffic from outside" -}}
{{- end -}}
{{- else if not (or $.Values.grpc.tls.clientCaSecret.name .loadBalancerSourceRanges (and $.Values.networkPolicy.enabled $.Values.networkPolicy.callers)) -}}
{{- fail (printf "service.type: %s admits every client outside the cluster, and any caller can use up any limit; require client certificates (grpc.tls.clientCaSecret), or restrict callers (service.loadBalancerSourceRanges of a LoadBalancer, or networkPolicy.enabled with networkPolicy.callers)" .type) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "sluicegate.validateLimits" -}}
{{- if and .Values.limits .Values.existingConfigMap -}}
{{- fail "limits and existingConfigMap: only one may give the limits" -}}
{{- end -}}
{{- if gt (len (toJson .Values.limits)) 1000000 -}}
{{- fail "limits are larger than a ConfigMap may be (1 MiB); split them, or mount them with extraVolumes and existingConfigMap" -}}
{{- end -}}
{{- end -}}

{{- define "sluicegate.validateScaling" -}}
{{- with .Values.autoscaling -}}
{{- if .enabled -}}
{{- if gt (int .minReplicas) (int .maxReplicas) -}}
{{- fail (printf "autoscaling.minReplicas: %d is more than autoscaling.maxReplicas: %d" (int .minReplicas) (int .maxReplicas)) -}}
{{- end -}}
{{- if and (not .targetCPUUtilizationPercentage) (not .metrics) -}}
{{- fail "autoscaling needs targetCPUUtilizationPercentage or metrics" -}}
{{- end -}}
{{- if and .targetCPUUtilizationPercentage (not (dig "requests" "cpu" "" $.Values.resources)) -}}
{{- fail "autoscaling.targetCPUUtilizationPercentage is a share of resources.requests.cpu, which is not set" -}}
{{- end -}}
{{- if hasKey $.Values.settings "replicas" -}}
{{- fail "settings.replicas is fixed, and autoscaling changes the number of pods; remove it, and each pod uses the number of live pods" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "sluicegate.validateDisruptions" -}}
{{- with .Values.podDisruptionBudget -}}
{{- if .enabled -}}
{{- $pods := ternary $.Values.autoscaling.minReplicas $.Values.replicaCount $.Values.autoscaling.enabled | int -}}
{{- if kindIs "invalid" .minAvailable -}}
{{- if kindIs "invalid" .maxUnavailable -}}
{{- fail "podDisruptionBudget needs maxUnavailable or minAvailable" -}}
{{- end -}}
{{- if has (toString .maxUnavailable) (list "0" "0%") -}}
{{- fail "podDisruptionBudget.maxUnavailable: 0 refuses every eviction, and no node could be drained" -}}
{{- end -}}
{{- else -}}
{{- $must := .minAvailable | toString -}}
{{- if hasSuffix "%" $must -}}
{{- $must = divf (mulf $pods (trimSuffix "%" $must | float64)) 100 | ceil -}}
{{- end -}}
{{- if ge (int $must) $pods -}}
{{- fail (printf "podDisruptionBudget.minAvailable: %v of %d pods refuses every eviction, and no node could be drained" .minAvailable $pods) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "sluicegate.validateTelemetry" -}}
{{- with .Values.otlp -}}
{{- if and .caSecret.name (not (hasPrefix "https://" .endpoint)) -}}
{{- fail "otlp.caSecret is set, but otlp.endpoint is not encrypted; use https://" -}}
{{- end -}}
{{- if and .traceRatio (not .endpoint) -}}
{{- fail "otlp.traceRatio needs otlp.endpoint: traces would go nowhere" -}}
{{- end -}}
{{- end -}}
{{- with .Values.serviceMonitor -}}
{{- if gt (include "sluicegate.seconds" .interval | int) 60 -}}
{{- fail (printf "serviceMonitor.interval: %s is more than 1m: the alerts use rates over 5m, which need several scrapes, and would never fire" .interval) -}}
{{- end -}}
{{- if gt (include "sluicegate.seconds" .scrapeTimeout | int) (include "sluicegate.seconds" .interval | int) -}}
{{- fail (printf "serviceMonitor.scrapeTimeout: %s is longer than serviceMonitor.interval: %s" .scrapeTimeout .interval) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Seconds of a duration in s or m. */}}
{{- define "sluicegate.seconds" -}}
{{- mul (regexFind "^[0-9]+" .) (ternary 60 1 (hasSuffix "m" .)) -}}
{{- end -}}

{{- define "sluicegate.validatePods" -}}
{{- $own := merge (include "sluicegate.selectorLabels" . | fromYaml) (include "sluicegate.ownLabels" . | fromYaml) -}}
{{- range $name, $labels := dict "podLabels" .Values.podLabels "commonLabels" .Values.commonLabels "test.podLabels" .Values.test.podLabels -}}
{{- range $label, $value := $labels -}}
{{- if hasKey $own $label -}}
{{- fail (printf "%s: the chart sets the label %s itself; remove it" $name $label) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range .Values.extraEnv -}}
{{- if hasPrefix "SLUICEGATE_" .name -}}
{{- fail (printf "extraEnv: %s is a setting of the server; use settings, or the value that has its name" .name) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.test.tls.secretName (not .Values.grpc.tls.enabled) -}}
{{- fail "test.tls.secretName is set, but grpc.tls is not on" -}}
{{- end -}}
{{- end -}}
