{{- define "myelin.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{- if and (not .Values.image.tag) (eq .Chart.AppVersion "0.0.0") -}}
{{- fail "image.tag: must be set: this chart is that of a source tree, and names no image; make image prints the tag of the image that it makes, and writes a chart that names it" -}}
{{- end -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- /* Labels that all objects have, beside app.kubernetes.io/name and component, which say what one is of. */ -}}
{{- define "myelin.labels" -}}
app.kubernetes.io/part-of: myelin
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- if .Values.commonLabels }}
{{ toYaml .Values.commonLabels }}
{{- end }}
{{- end -}}

{{- define "myelin.agentLabels" -}}
{{ include "myelin.labels" . }}
app.kubernetes.io/name: myelin-agent
app.kubernetes.io/component: agent
{{- end -}}

{{- define "myelin.operatorLabels" -}}
{{ include "myelin.labels" . }}
app.kubernetes.io/name: myelin-operator
app.kubernetes.io/component: operator
{{- end -}}

{{- define "myelin.cleanupLabels" -}}
{{ include "myelin.labels" . }}
app.kubernetes.io/name: myelin-cleanup
app.kubernetes.io/component: cleanup
{{- end -}}

{{- /* A file of rights: its objects with the labels of the template that is named. */ -}}
{{- define "myelin.labelled" -}}
{{- regexReplaceAll "(?m)^metadata:$" .text (printf "metadata:\n  labels:%s" (.labels | nindent 4)) -}}
{{- end -}}

{{- /* The API server as HOST:PORT; with k8sServiceHost: auto that which kubeadm stores for nodes that join. */ -}}
{{- define "myelin.server" -}}
{{- $info := lookup "v1" "ConfigMap" "kube-public" "cluster-info" -}}
{{- $url := "" -}}
{{- if $info -}}
{{- $url = regexFind "https://[^ \\n\"]+:[0-9]+" (index $info.data "kubeconfig") -}}
{{- end -}}
{{- if not $url -}}
{{- fail "k8sServiceHost: auto: there is no ConfigMap kube-public/cluster-info with the API server's address, as kubeadm writes it, or no cluster is asked: give the address" -}}
{{- end -}}
{{- trimPrefix "https://" $url -}}
{{- end -}}

{{- define "myelin.serverHost" -}}
{{- if eq (.Values.k8sServiceHost | default "") "auto" -}}
{{- regexReplaceAll "^\\[?([^\\]]+?)\\]?:[0-9]+$" (include "myelin.server" .) "${1}" -}}
{{- else -}}
{{- .Values.k8sServiceHost | default "" -}}
{{- end -}}
{{- end -}}

{{- define "myelin.serverPort" -}}
{{- if eq (.Values.k8sServiceHost | default "") "auto" -}}
{{- regexFind "[0-9]+$" (include "myelin.server" .) -}}
{{- else -}}
{{- .Values.k8sServicePort | default "" -}}
{{- end -}}
{{- end -}}

{{- /* The configuration file: all values but the chart's own. */ -}}
{{- define "myelin.config" -}}
{{- $host := include "myelin.serverHost" . -}}
{{- $port := include "myelin.serverPort" . -}}
{{- if $host -}}
k8sServiceHost: {{ $host | quote }}
{{ end -}}
{{- if $port -}}
k8sServicePort: {{ $port }}
{{ end -}}
{{- toYaml (omit .Values "image" "imagePullSecrets" "resources" "nodeSelector" "tolerations" "affinity" "priorityClassName" "podAnnotations" "podLabels" "extraArgs" "extraEnv" "updateStrategy" "terminationGracePeriodSeconds" "rollOutCiliumPods" "commonLabels" "startupProbe" "livenessProbe" "readinessProbe" "securityContext" "operator" "rbac" "serviceAccounts" "nodeCleanup" "cgroup" "global" "k8sServiceHost" "k8sServicePort" "prometheus" "hubble" "myelin" "envoy") -}}
{{ print "\n" }}{{ include "myelin.hubbleConfig" . }}
{{- if include "myelin.envoyConfig" . }}
{{ include "myelin.envoyConfig" . }}
{{- end }}
{{ print "\nprometheus:" }}
{{- toYaml (omit .Values.prometheus "serviceMonitor" "metricsService") | nindent 2 -}}
{{- end -}}

{{- /* What a Prometheus without its operator finds pods by, as annotations. */ -}}
{{- define "myelin.scrape" -}}
{{- if and .enabled (not .serviceMonitor.enabled) }}
prometheus.io/scrape: "true"
prometheus.io/port: {{ .port | quote }}
{{- end -}}
{{- end -}}

{{- /* The Secret of IPsec, empty if packets are not encrypted by it. */ -}}
{{- define "myelin.ipsecSecret" -}}
{{- $encryption := .Values.encryption | default dict -}}
{{- if and $encryption.enabled (eq ($encryption.type | default "ipsec") "ipsec") -}}
{{- $ipsec := $encryption.ipsec | default dict -}}
{{ $ipsec.secretName | default "cilium-ipsec-keys" }}
{{- end -}}
{{- end -}}

{{- define "myelin.ipsecPath" -}}
{{- $ipsec := .Values.encryption.ipsec | default dict -}}
{{ $ipsec.mountPath | default "/etc/ipsec" }}
{{- end -}}
