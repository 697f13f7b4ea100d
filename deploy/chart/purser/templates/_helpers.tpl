{{- define "purser.name" -}}
{{- if contains "purser" .Release.Name }}{{ .Release.Name | trunc 63 | trimSuffix "-" }}{{ else }}{{ printf "%s-purser" .Release.Name | trunc 63 | trimSuffix "-" }}{{ end -}}
{{- end }}

{{- define "purser.selector" -}}
app.kubernetes.io/name: purser
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "purser.metadata" -}}
name: {{ include "purser.name" . }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "purser.selector" . | nindent 2 }}
  app.kubernetes.io/managed-by: {{ .Release.Service }}
  helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}
