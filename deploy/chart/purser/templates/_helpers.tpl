{{- define "purser.name" -}}
{{- if .Values.fullnameOverride }}{{ .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains "purser" .Release.Name }}{{ .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}{{ printf "%s-purser" .Release.Name | trunc 63 | trimSuffix "-" }}{{ end -}}
{{- end }}

{{- define "purser.selector" -}}
app.kubernetes.io/name: purser
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* The metadata of an object: dict "root" $ "name" "its-name", and "component" for pods that aren't the registry's. */}}
{{- define "purser.metadataNamed" -}}
name: {{ .name }}
namespace: {{ .root.Release.Namespace }}
labels:
  app.kubernetes.io/name: {{ if .component }}{{ printf "purser-%s" .component }}{{ else }}purser{{ end }}
  app.kubernetes.io/instance: {{ .root.Release.Name }}
  app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .root.Release.Service }}
  helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "purser.metadata" -}}
{{ include "purser.metadataNamed" (dict "root" . "name" (include "purser.name" .)) }}
{{- end }}

{{- define "purser.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (.Values.serviceAccount.create | ternary (include "purser.name" .) "default") }}
{{- end }}

{{- define "purser.image" -}}
{{- $repository := required "image.repository: name the repository that you have pushed the image to" .Values.image.repository }}
{{- with .Values.image.digest }}{{ printf "%s@%s" $repository . }}{{ else }}{{ printf "%s:%s" $repository (.Values.image.tag | default (printf "v%s" .Chart.AppVersion)) }}{{ end }}
{{- end }}

{{- define "purser.pullSecrets" -}}
{{- with .Values.imagePullSecrets -}}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "purser.metricsName" -}}
{{- printf "%s-metrics" (include "purser.name" . | trunc 55 | trimSuffix "-") }}
{{- end }}

{{- define "purser.reportName" -}}
{{- printf "%s-report" (include "purser.name" . | trunc 45 | trimSuffix "-") }}
{{- end }}

{{- define "purser.reportPod" -}}
serviceAccountName: {{ include "purser.reportName" . }}
automountServiceAccountToken: true
enableServiceLinks: false
securityContext:
  {{- include "purser.podSecurity" . | nindent 2 }}
{{- with include "purser.pullSecrets" . }}
{{ . }}
{{- end }}
{{- with include "purser.placement" . | trim }}
{{ . }}
{{- end }}
{{- with include "purser.caVolume" . | trim }}
volumes:
  {{- . | nindent 2 }}
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
      {{- with include "purser.caEnv" . }}
      {{- . | nindent 6 }}
      {{- end }}
      {{- with .Values.report.extraEnv }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    {{- with include "purser.caMount" . }}
    volumeMounts:
      {{- . | nindent 6 }}
    {{- end }}
    securityContext:
      {{- include "purser.containerSecurity" . | nindent 6 }}
    resources:
      requests: {cpu: 50m, memory: 64Mi}
      limits: {memory: 512Mi}
{{- end }}

{{- define "purser.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "purser.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "purser.hasCA" -}}
{{- if and .Values.caBundle.configMapName .Values.caBundle.secretName }}{{ fail "caBundle: name a ConfigMap or a Secret, not both" }}{{ end }}
{{- or .Values.caBundle.configMapName .Values.caBundle.secretName }}
{{- end }}

{{- /* The certificates of caBundle in a container. */}}
{{- define "purser.caEnv" -}}
{{- if include "purser.hasCA" . }}- {name: SSL_CERT_DIR, value: "/etc/ssl/certs:/etc/purser-ca"}{{ end }}
{{- end }}

{{- define "purser.caMount" -}}
{{- if include "purser.hasCA" . }}- {name: ca, mountPath: /etc/purser-ca, readOnly: true}{{ end }}
{{- end }}

{{- define "purser.caVolume" -}}
{{- with .Values.caBundle.configMapName }}
- name: ca
  configMap: {name: {{ . }}}
{{- end }}
{{- with .Values.caBundle.secretName }}
- name: ca
  secret: {secretName: {{ . }}}
{{- end }}
{{- end }}

{{- define "purser.env" -}}
- {name: PURSER_CONFIG, value: /etc/purser/config.yaml}
{{- with include "purser.caEnv" . }}
{{ . }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "purser.envFrom" -}}
{{- with .Values.existingSecret }}
- secretRef: {name: {{ . }}}
{{- end }}
{{- with .Values.extraEnvFrom }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "purser.volumeMounts" -}}
- {name: config, mountPath: /etc/purser, readOnly: true}
- {name: data, mountPath: /var/lib/purser}
- {name: tmp, mountPath: /tmp}
{{- with include "purser.caMount" . }}
{{ . }}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "purser.volumes" -}}
- name: config
  configMap: {name: {{ include "purser.name" . }}}
- name: data
  {{- if .Values.persistence.existingClaim }}
  persistentVolumeClaim: {claimName: {{ .Values.persistence.existingClaim }}}
  {{- else }}
  emptyDir: {}
  {{- end }}
- name: tmp
  emptyDir: {}
{{- with include "purser.caVolume" . | trim }}
{{ . }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* Where pods run. */}}
{{- define "purser.placement" -}}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "purser.backupName" -}}
{{- printf "%s-backup" (include "purser.name" . | trunc 38 | trimSuffix "-") }}
{{- end }}

{{- define "purser.backupTarget" -}}
{{- if .Values.backup.existingClaim }}{{ with .Values.backup.target }}{{ fail "backup.target: leave it empty, since backup.existingClaim says where backups go" }}{{ end }}/backup{{ else }}
{{- required "backup.target: name s3://BUCKET/PREFIX, or a claim in backup.existingClaim" .Values.backup.target }}{{ end }}
{{- end }}

{{- /* A container of a backup's pod: dict "root" $ "name" "backup" "args" (list …) */}}
{{- define "purser.backupContainer" -}}
- name: {{ .name }}
  image: {{ include "purser.image" .root }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  args:
    {{- toYaml .args | nindent 4 }}
    {{- with .root.Values.backup.extraArgs }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    - {{ include "purser.backupTarget" .root | quote }}
  env:
    {{- include "purser.env" .root | nindent 4 }}
    {{- with .root.Values.backup.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- $from := include "purser.envFrom" .root | trim }}
  {{- if or $from .root.Values.backup.existingSecret }}
  envFrom:
    {{- with $from }}{{ . | nindent 4 }}{{ end }}
    {{- with .root.Values.backup.existingSecret }}
    - secretRef: {name: {{ . }}}
    {{- end }}
  {{- end }}
  securityContext:
    {{- include "purser.containerSecurity" .root | nindent 4 }}
  resources:
    {{- toYaml .root.Values.backup.resources | nindent 4 }}
  volumeMounts:
    {{- include "purser.volumeMounts" .root | nindent 4 }}
    {{- if .root.Values.backup.existingClaim }}
    - {name: backup, mountPath: /backup}
    {{- end }}
{{- end }}

{{- define "purser.backupPod" -}}
serviceAccountName: {{ include "purser.serviceAccount" . }}
automountServiceAccountToken: false
enableServiceLinks: false
restartPolicy: Never
securityContext:
  {{- include "purser.podSecurity" . | nindent 2 }}
{{- with include "purser.pullSecrets" . }}
{{ . }}
{{- end }}
volumes:
  {{- include "purser.volumes" . | nindent 2 }}
  {{- if .Values.backup.existingClaim }}
  - name: backup
    persistentVolumeClaim: {claimName: {{ .Values.backup.existingClaim }}}
  {{- end }}
{{- with include "purser.placement" . | trim }}
{{ . }}
{{- end }}
{{- end }}
