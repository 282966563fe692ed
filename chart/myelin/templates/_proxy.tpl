{{- define "myelin.proxyLabels" -}}
{{ include "myelin.labels" . }}
app.kubernetes.io/name: myelin-proxy
app.kubernetes.io/component: proxy
{{- end -}}

{{- /* Not empty: the proxy has a DaemonSet of its own, and agents start none. */ -}}
{{- define "myelin.proxy" -}}
{{- if and .Values.envoy.enabled (ne (toString .Values.l7Proxy) "false") }}true{{ end -}}
{{- end -}}

{{- /* Not empty: agents start the proxy, in their own container. */ -}}
{{- define "myelin.agentProxy" -}}
{{- if not (or .Values.envoy.enabled (eq (toString .Values.l7Proxy) "false")) }}true{{ end -}}
{{- end -}}

{{- /* Keys below myelin.proxy of the configuration file. */ -}}
{{- define "myelin.proxyConfig" -}}
{{- if include "myelin.proxy" . -}}
proxy:
  supervise: false
  {{- if .Values.myelin.proxy }}
  {{- if omit .Values.myelin.proxy "supervise" }}
  {{- toYaml (omit .Values.myelin.proxy "supervise") | nindent 2 }}
  {{- end }}
  {{- end }}
{{- else if .Values.myelin.proxy -}}
proxy:
  {{- toYaml .Values.myelin.proxy | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* Keys below envoy that the chart does nothing by: the agent names them. */ -}}
{{- define "myelin.envoyConfig" -}}
{{- $rest := omit .Values.envoy "enabled" "annotations" "podAnnotations" "podLabels" "resources" "nodeSelector" "tolerations" "affinity" "priorityClassName" "extraArgs" "extraEnv" "updateStrategy" "terminationGracePeriodSeconds" "startupProbe" "livenessProbe" "readinessProbe" "securityContext" }}
{{- if $rest -}}
envoy:
  {{- toYaml $rest | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* The affinity of agents and proxies: .affinity, whose key is .key, and while .migrate not where Cilium runs. */ -}}
{{- define "myelin.affinity" -}}
{{- if .migrate -}}
affinity:
  {{- if .affinity }}
  {{- if .affinity.nodeAffinity }}
  {{- fail (print .key ".nodeAffinity: can't be given while operator.migrateFromCilium is true, "
            "which says by it where agents run") }}
  {{- end }}
  {{- toYaml .affinity | nindent 2 }}
  {{- end }}
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
      - matchExpressions:
        - {key: myelin.io/cilium, operator: NotIn, values: ["true"]}
{{- else if .affinity -}}
affinity:
  {{- toYaml .affinity | nindent 2 }}
{{- end }}
{{- end -}}
