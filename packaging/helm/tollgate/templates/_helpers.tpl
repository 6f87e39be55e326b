{{- define "tollgate.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "tollgate.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tollgate.labels" -}}
{{ include "tollgate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "tollgate.tokens" -}}
{{ default (printf "%s-tokens" (include "tollgate.name" .)) .Values.tokens.existingSecret }}
{{- end }}

{{- define "tollgate.serviceAccount" -}}
{{ default (include "tollgate.name" .) .Values.serviceAccount.name }}
{{- end }}

{{- /* Probes and metrics use the admin address. */ -}}
{{- define "tollgate.adminScheme" -}}
{{- ternary "https" "http" (hasKey (.Values.config.tls | default dict) "admin") -}}
{{- end }}

{{- define "tollgate.counters" -}}
{{- $redis := .Values.redis -}}
{{- $login := ternary "" (printf "%s@" (urlquery $redis.user)) (empty $redis.user) -}}
{{- $path := ternary "" (printf "/%s" $redis.path) (empty $redis.path) -}}
{{- $query := ternary "" "?password_file=/run/secrets/redis/password" (empty $redis.existingSecret) -}}
{{- printf "%s://%s%s%s%s" $redis.scheme $login $redis.address $path $query -}}
{{- end }}

{{- define "tollgate.rulesDb" -}}
{{- $postgres := .Values.postgres -}}
{{- $file := ternary "" "password_file=/run/secrets/postgres/password" (empty $postgres.existingSecret) -}}
{{- $query := compact (list $file $postgres.options) | join "&" -}}
{{- printf "postgres://%s@%s/%s%s" (urlquery $postgres.user) $postgres.address $postgres.database (ternary "" (printf "?%s" $query) (empty $query)) -}}
{{- end }}

{{- /* tollgate.yaml: defaults of the chart, then what config sets. */ -}}
{{- define "tollgate.config" -}}
{{- $listen := dict "http" "0.0.0.0:8080" "admin" "0.0.0.0:7070" -}}
{{- $_ := set $listen "grpc" (ternary "0.0.0.0:8081" "off" .Values.grpc.enabled) -}}
{{- $_ := set $listen "resp" (ternary "0.0.0.0:6380" "off" .Values.resp.enabled) -}}
{{- if .Values.config.upstreams }}{{ $_ := set $listen "proxy" "0.0.0.0:8000" }}{{ end -}}
{{- $config := dict "listen" $listen "state_dir" "/var/lib/tollgate" -}}
{{- if .Values.redis.address }}{{ $_ := set $config "counters" (include "tollgate.counters" .) }}{{ $_ := set $config "nodes" (int .Values.replicaCount) }}{{ end -}}
{{- $_ := set $config "rules_db" (ternary (include "tollgate.rulesDb" .) "none" (not (empty .Values.postgres.address))) -}}
{{- toYaml (mergeOverwrite $config (deepCopy .Values.config)) -}}
{{- end }}
