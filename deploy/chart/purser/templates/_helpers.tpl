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

{{- define "purser.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "purser.env" -}}
- {name: PURSER_CONFIG, value: /etc/purser/config.yaml}
- name: PURSER_DATABASE_MAIN
  valueFrom:
    secretKeyRef:
      name: {{ required "database.secretName: name the secret that has the URL of the database" .Values.database.secretName }}
      key: {{ .Values.database.key }}
{{- range .Values.secrets }}
- name: {{ .variable }}
  valueFrom:
    secretKeyRef: {name: {{ .secretName }}, key: {{ .key }}}
{{- end }}
{{- end }}

{{- define "purser.volumeMounts" -}}
- {name: config, mountPath: /etc/purser, readOnly: true}
- {name: data, mountPath: /var/lib/purser}
- {name: tmp, mountPath: /tmp}
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
    {{- with .root.Values.backup.args }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    - {{ include "purser.backupTarget" .root | quote }}
  env:
    {{- include "purser.env" .root | nindent 4 }}
    {{- range .root.Values.backup.secrets }}
    - name: {{ .variable }}
      valueFrom:
        secretKeyRef: {name: {{ .secretName }}, key: {{ .key }}}
    {{- end }}
  securityContext:
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities: {drop: [ALL]}
  resources:
    {{- toYaml .root.Values.backup.resources | nindent 4 }}
  volumeMounts:
    {{- include "purser.volumeMounts" .root | nindent 4 }}
    {{- if .root.Values.backup.existingClaim }}
    - {name: backup, mountPath: /backup}
    {{- end }}
{{- end }}

{{- define "purser.backupPod" -}}
serviceAccountName: {{ include "purser.name" . }}
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
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
