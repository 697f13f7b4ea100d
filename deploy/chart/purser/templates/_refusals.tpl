{{- /* Values without an effect are refused, so that nobody believes that they have one. */}}

{{- /* What the values below everything that can be turned on are as long as nobody sets them. values.yaml says the same. */}}
{{- define "purser.unset" -}}
ingress: {className: "", annotations: {}, hosts: [], tls: []}
httpRoute: {annotations: {}, parentRefs: [], hostnames: [], requestTimeout: ""}
autoscaling: {minReplicas: 2, maxReplicas: 10, targetCPUUtilizationPercentage: 70, targetRequestsPerSecond: 0, requestsMetric: purser_http_requests_per_second}
podDisruptionBudget: {maxUnavailable: 1}
networkPolicy: {clients: [], metrics: [], egress: []}
podMonitor: {interval: 30s, labels: {}, secretName: ""}
serviceMonitor: {interval: 30s, labels: {}, secretName: ""}
prometheusRule: {labels: {}}
dashboard: {labels: {grafana_dashboard: "1"}, annotations: {}}
report: {reporter: "", server: "", watch: true, registry: "", alsoKnownAs: [], namespace: "", schedule: "*/10 * * * *", lease: 1d, secretName: "", key: token, extraEnv: []}
backup:
  {target: "", existingClaim: "", schedule: "0 2 * * *", verifySchedule: "0 4 * * 0", keep: 14, blobs: copy, existingSecret: "", extraArgs: [], extraEnv: [],
  resources: {requests: {cpu: 100m, memory: 256Mi}, limits: {memory: 1Gi}}}
{{- end }}

{{- define "purser.refusals" -}}
{{- $values := .Values }}
{{- $unset := include "purser.unset" . | fromYaml }}
{{- range $section, $defaults := $unset }}
{{- $set := get $values $section }}
{{- if not $set.enabled }}
{{- range $key, $value := omit $set "enabled" }}
{{- if ne (toJson $value) (toJson (get $defaults $key)) }}
{{- fail (printf "%s.%s has no effect, since %s.enabled is false: turn that on, or remove the value" $section $key $section) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- if and .Chart.IsRoot .Values.global }}
{{- fail "global has no effect: this chart reads no global values" }}
{{- end }}
{{- if and .Values.image.tag .Values.image.digest }}
{{- fail "image.tag has no effect, since image.digest names the image: remove one of them" }}
{{- end }}
{{- if and .Values.serviceAccount.annotations (not .Values.serviceAccount.create) }}
{{- fail "serviceAccount.annotations have no effect, since serviceAccount.create is false: annotate the account where it is made" }}
{{- end }}
{{- with .Values.autoscaling }}
{{- if and .enabled (ne (int $values.replicaCount) 2) }}
{{- fail "replicaCount has no effect, since autoscaling.enabled is true: set autoscaling.minReplicas" }}
{{- end }}
{{- if and .enabled (not .targetRequestsPerSecond) (ne .requestsMetric $unset.autoscaling.requestsMetric) }}
{{- fail "autoscaling.requestsMetric has no effect, since autoscaling.targetRequestsPerSecond is 0" }}
{{- end }}
{{- end }}
{{- if and .Values.report.enabled .Values.report.watch (ne .Values.report.schedule $unset.report.schedule) }}
{{- fail "report.schedule has no effect, since report.watch is true: set report.watch: false for a CronJob" }}
{{- end }}
{{- if and .Values.report.enabled (not .Values.report.watch) }}
{{- $lease := .Values.report.lease }}
{{- $minutes := divf (mul (regexFind "[0-9]+" $lease | int) (get (dict "s" 1 "m" 60 "h" 3600 "d" 86400 "w" 604800 "y" 31536000) (regexFind "[a-z]" $lease))) 60 }}
{{- $between := include "purser.minutesBetween" .Values.report.schedule | trim | int }}
{{- if lt $minutes (float64 (mul 3 $between)) }}
{{- fail (printf "report.lease %s is too short for report.schedule %q, which leaves %d minutes between two reports: what is deployed might be deleted between them. Use a lease of three times as long, or report more often" $lease .Values.report.schedule $between) }}
{{- end }}
{{- end }}
{{- $fixed := "the chart's pods have it by a variable, which wins" }}
{{- range $key, $why := dict "data_dir" $fixed "http.addr" $fixed "http.debug_addr" $fixed "http.drain_timeout" "drainSeconds sets it" }}
{{- $value := $values.config }}
{{- range $part := splitList "." $key }}{{ if kindIs "map" $value }}{{ $value = get $value $part }}{{ else }}{{ $value = "" }}{{ end }}{{ end }}
{{- if $value }}{{ fail (printf "config.%s has no effect: %s" $key $why) }}{{ end }}
{{- end }}
{{- end }}

{{- /* How many minutes pass between two runs of a schedule, at least where it leaves the longest time; 0: unknown. */}}
{{- define "purser.minutesBetween" -}}
{{- $parts := regexSplit " +" (trim .) -1 }}
{{- $minute := first $parts }}
{{- if has $minute (list "@yearly" "@annually" "@monthly" "@weekly") }}10080
{{- else if has $minute (list "@daily" "@midnight") }}1440
{{- else if eq $minute "@hourly" }}60
{{- else if eq (len $parts) 5 }}
{{- $hour := index $parts 1 }}
{{- $once := regexMatch "^[0-9]+$" $minute }}
{{- if regexMatch "^[0-9]+$" $hour }}{{ ternary 1440 1380 $once }}
{{- else if hasPrefix "*/" $hour }}{{ mul 60 (sub (trimPrefix "*/" $hour | int) (ternary 0 1 $once)) }}
{{- else if and (eq $hour "*") $once }}60
{{- else if and (eq $hour "*") (hasPrefix "*/" $minute) }}{{ trimPrefix "*/" $minute | int }}
{{- else }}0{{ end }}
{{- else }}0{{ end }}
{{- end }}
