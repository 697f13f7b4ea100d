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

{{- define "purser.image" -}}
{{- $repository := required "image.repository: name the repository that you have pushed the image to" .Values.image.repository }}
{{- with .Values.image.digest }}{{ printf "%s@%s" $repository . }}{{ else }}{{ printf "%s:%s" $repository .Values.image.tag }}{{ end }}
{{- end }}

{{- define "purser.pullSecrets" -}}
{{- with .Values.image.pullSecrets -}}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "purser.reportName" -}}
{{- printf "%s-report" (include "purser.name" . | trunc 45 | trimSuffix "-") }}
{{- end }}

{{- define "purser.reportPod" -}}
serviceAccountName: {{ include "purser.reportName" . }}
automountServiceAccountToken: true
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- with include "purser.pullSecrets" . }}
{{ . }}
{{- end }}
containers:
  - name: report
    image: {{ include "purser.image" . }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    args:
      - report
      - kubernetes
      - {{ required "report.reporter: name the reporter, such as prod-eu" .Values.report.reporter | quote }}
      {{- if .Values.report.watch }}
      - --watch
      {{- end }}
      - {{ printf "--server=%s" (required "report.server: name the URL of the registry to report to" .Values.report.server) | quote }}
      {{- with .Values.report.registry }}
      - {{ printf "--registry=%s" . | quote }}
      {{- end }}
      {{- range .Values.report.alsoKnownAs }}
      - {{ printf "--also-known-as=%s" . | quote }}
      {{- end }}
      {{- with .Values.report.namespace }}
      - {{ printf "--namespace=%s" . | quote }}
      {{- end }}
      - {{ printf "--lease=%s" .Values.report.lease | quote }}
    env:
      - name: PURSER_TOKEN
        valueFrom:
          secretKeyRef:
            name: {{ required "report.secretName: name the secret that has the secret of the robot that reports" .Values.report.secretName }}
            key: {{ .Values.report.key }}
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: [ALL]}
    resources:
      requests: {cpu: 50m, memory: 64Mi}
      limits: {memory: 512Mi}
{{- end }}
