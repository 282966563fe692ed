{{- define "myelin.wireguardLabels" -}}
{{ include "myelin.labels" . }}
app.kubernetes.io/name: myelin-wireguard
app.kubernetes.io/component: wireguard
{{- end -}}

{{- /* Not empty: packets are encrypted by WireGuard. Agents do not start its processes, which would end with their
       containers. */ -}}
{{- define "myelin.wireguard" -}}
{{- $encryption := .Values.encryption | default dict -}}
{{- if and $encryption.enabled (eq ($encryption.type | default "ipsec") "wireguard") }}true{{ end -}}
{{- end -}}

{{- /* Not empty: a DaemonSet of its own starts them. */ -}}
{{- define "myelin.wireguardFallback" -}}
{{- if include "myelin.wireguard" . -}}
{{- $wireguard := .Values.encryption.wireguard | default dict -}}
{{- if $wireguard.userspaceFallback }}true{{ end -}}
{{- end -}}
{{- end -}}
