{{- define "myelin.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "myelin.labels" -}}
app.kubernetes.io/part-of: myelin
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end -}}

{{- /* The configuration file: all values but the chart's own. */ -}}
{{- define "myelin.config" -}}
{{- toYaml (omit .Values "image" "imagePullSecrets" "resources" "nodeSelector" "tolerations" "affinity" "priorityClassName" "podAnnotations" "podLabels" "extraArgs" "extraEnv" "updateStrategy" "terminationGracePeriodSeconds" "rollOutCiliumPods" "startupProbe" "livenessProbe" "readinessProbe" "securityContext" "operator" "rbac" "serviceAccounts" "nodeCleanup" "cgroup" "global") -}}
{{- end -}}
