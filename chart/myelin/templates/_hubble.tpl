{{- define "myelin.hubbleLabels" -}}
{{ include "myelin.labels" . }}
app.kubernetes.io/name: hubble
app.kubernetes.io/component: agent
{{- end -}}

{{- define "myelin.relayLabels" -}}
{{ include "myelin.labels" . }}
app.kubernetes.io/name: hubble-relay
app.kubernetes.io/component: relay
{{- end -}}

{{- define "myelin.uiLabels" -}}
{{ include "myelin.labels" . }}
app.kubernetes.io/name: hubble-ui
app.kubernetes.io/component: ui
{{- end -}}

{{- /* Whether there are relays: not while Cilium, whose objects have the same names, is migrated from. */ -}}
{{- define "myelin.relay" -}}
{{- if and .Values.hubble.enabled .Values.hubble.relay.enabled (not .Values.operator.migrateFromCilium) -}}
yes
{{- end -}}
{{- end -}}

{{- define "myelin.ui" -}}
{{- if and .Values.hubble.enabled .Values.hubble.ui.enabled (not .Values.operator.migrateFromCilium) -}}
{{- if not .Values.hubble.relay.enabled -}}
{{- fail "hubble.ui.enabled: needs hubble.relay.enabled: the page shows what relays have" -}}
{{- end -}}
yes
{{- end -}}
{{- end -}}

{{- define "myelin.hubbleMetrics" -}}
{{- if and .Values.hubble.enabled .Values.hubble.metrics.enabled -}}
yes
{{- end -}}
{{- end -}}

{{- /* Where nodes listen, empty: nowhere. */ -}}
{{- define "myelin.hubbleListen" -}}
{{- if .Values.hubble.listenAddress -}}
{{ .Values.hubble.listenAddress }}
{{- else if include "myelin.relay" . -}}
:4244
{{- end -}}
{{- end -}}

{{- define "myelin.hubbleListenPort" -}}
{{ regexFind "[0-9]+$" (include "myelin.hubbleListen" .) }}
{{- end -}}

{{- /* Whether nodes have the certificates of a Secret. */ -}}
{{- define "myelin.hubbleTLS" -}}
{{- if and .Values.hubble.enabled .Values.hubble.tls.enabled (include "myelin.hubbleListen" .) -}}
{{- if not (include "myelin.ownCertificates" .) -}}
yes
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Files of certificates that users bring onto nodes themselves. */ -}}
{{- define "myelin.ownCertificates" -}}
{{- if .Values.myelin.hubble -}}
{{- if .Values.myelin.hubble.tls -}}
{{ .Values.myelin.hubble.tls.certFile | default "" }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The domain of Services of the release. */ -}}
{{- define "myelin.hubbleDomain" -}}
{{ .Release.Namespace }}.svc.{{ .Values.hubble.peerService.clusterDomain }}
{{- end -}}

{{- define "myelin.peerPort" -}}
{{- if .Values.hubble.peerService.servicePort -}}
{{ .Values.hubble.peerService.servicePort }}
{{- else if .Values.hubble.tls.enabled -}}
443
{{- else -}}
80
{{- end -}}
{{- end -}}

{{- define "myelin.relayPort" -}}
{{- if .Values.hubble.relay.servicePort -}}
{{ .Values.hubble.relay.servicePort }}
{{- else if .Values.hubble.relay.tls.server.enabled -}}
443
{{- else -}}
80
{{- end -}}
{{- end -}}

{{- /* Certificates that are made for this release, with commas between. */ -}}
{{- define "myelin.certificates" -}}
{{- $list := "" -}}
{{- $relay := include "myelin.relay" . -}}
{{- $tls := .Values.hubble.relay.tls -}}
{{- if and (include "myelin.hubbleTLS" .) (not .Values.hubble.tls.server.existingSecret) -}}
{{- $list = print $list ",server" -}}
{{- end -}}
{{- if and $relay .Values.hubble.tls.enabled (not $tls.client.existingSecret) -}}
{{- $list = print $list ",relay-client" -}}
{{- end -}}
{{- if and $relay $tls.server.enabled (not $tls.server.existingSecret) -}}
{{- $list = print $list ",relay-server" -}}
{{- end -}}
{{- if and (include "myelin.ui" .) $tls.server.enabled (not .Values.hubble.ui.tls.client.existingSecret) -}}
{{- $list = print $list ",ui-client" -}}
{{- end -}}
{{- if .Values.hubble.tls.auto.enabled -}}
{{ trimPrefix "," $list }}
{{- end -}}
{{- end -}}

{{- /* Those that operators make. */ -}}
{{- define "myelin.hubbleCertificates" -}}
{{- if ne .Values.hubble.tls.auto.method "certmanager" -}}
{{- $list := include "myelin.certificates" . -}}
{{- if and $list (not .Values.operator.enabled) -}}
{{- fail "hubble.tls.auto.enabled: needs operator.enabled, or the method certmanager, or Secrets that are named by existingSecret" -}}
{{- end -}}
{{ $list }}
{{- end -}}
{{- end -}}

{{- /* The folder of exported files, empty if it is mounted anyway or there is none. */ -}}
{{- define "myelin.exportFolder" -}}
{{- $export := .Values.hubble.export -}}
{{- if and .Values.hubble.enabled (or $export.static.enabled $export.dynamic.enabled) -}}
{{- $folder := regexReplaceAll "/[^/]*$" $export.static.filePath "" -}}
{{- if not (regexFind (print "^" .Values.myelin.runDir "(/|$)") $folder) -}}
{{- if not (eq $export.static.filePath "stdout") -}}
{{- if not $folder -}}
{{- fail "hubble.export.static.filePath: must be in a folder, which agents may write to" -}}
{{- end -}}
{{ $folder }}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* What agents need to know of hubble and of myelin: not what only relays, the page or objects are made of. What of
       these no template acts on stays, for agents to tell that it has no effect. */ -}}
{{- define "myelin.hubbleConfig" -}}
{{- $h := .Values.hubble -}}
hubble:
  {{- toYaml (omit $h "listenAddress" "annotations" "peerService" "tls" "relay" "ui" "metrics" "export") | nindent 2 }}
  {{- if include "myelin.hubbleListen" . }}
  listenAddress: {{ include "myelin.hubbleListen" . | quote }}
  {{- end }}
  tls:
    enabled: {{ $h.tls.enabled }}
    {{- $auto := omit $h.tls.auto "enabled" "method" "certValidityDuration" "certManagerIssuerRef" }}
    {{- if $auto }}
    auto:
      {{- toYaml $auto | nindent 6 }}
    {{- end }}
  metrics:
    {{- toYaml (omit $h.metrics "serviceMonitor" "serviceAnnotations" "dashboards") | nindent 4 }}
  export:
    {{- toYaml (omit $h.export "dynamic") | nindent 4 }}
    dynamic:
      enabled: {{ $h.export.dynamic.enabled }}
  {{- $relay := omit $h.relay "enabled" "replicas" "rollOutPods" "resources" "affinity" "topologySpreadConstraints" "nodeSelector" "tolerations" "annotations" "podAnnotations" "podLabels" "extraEnv" "extraVolumes" "extraVolumeMounts" "priorityClassName" "terminationGracePeriodSeconds" "updateStrategy" "podDisruptionBudget" "podSecurityContext" "securityContext" "service" "servicePort" "listenHost" "listenPort" "tls" "retryTimeout" "sortBufferLenMax" "sortBufferDrainTimeout" "logOptions" "prometheus" }}
  {{- if $relay }}
  relay:
    {{- toYaml $relay | nindent 4 }}
  {{- end }}
  {{- $ui := omit $h.ui "enabled" "replicas" "rollOutPods" "backend" "affinity" "topologySpreadConstraints" "nodeSelector" "tolerations" "annotations" "labels" "podAnnotations" "podLabels" "priorityClassName" "updateStrategy" "podDisruptionBudget" "securityContext" "service" "ingress" "tls" }}
  {{- $backend := omit $h.ui.backend "resources" "extraEnv" }}
  {{- if or $ui $backend }}
  ui:
    {{- if $ui }}
    {{- toYaml $ui | nindent 4 }}
    {{- end }}
    {{- if $backend }}
    backend:
      {{- toYaml $backend | nindent 6 }}
    {{- end }}
  {{- end }}
myelin:
  {{- toYaml (omit .Values.myelin "hubble" "proxy" "wireguard") | nindent 2 }}
  {{- if include "myelin.wireguard" . }}
  wireguard:
    supervise: false
  {{- end }}
  {{- if include "myelin.proxyConfig" . }}
  {{- include "myelin.proxyConfig" . | nindent 2 }}
  {{- end }}
  {{- if .Values.myelin.hubble }}
  hubble:
    {{- if include "myelin.hubbleTLS" . }}
    {{- if omit .Values.myelin.hubble "tls" }}
    {{- toYaml (omit .Values.myelin.hubble "tls") | nindent 4 }}
    {{- end }}
    {{- include "myelin.certificateFiles" . | nindent 4 }}
    {{- else }}
    {{- toYaml .Values.myelin.hubble | nindent 4 }}
    {{- end }}
  {{- else if include "myelin.hubbleTLS" . }}
  hubble:
    {{- include "myelin.certificateFiles" . | nindent 4 }}
  {{- end }}
{{- end -}}

{{- define "myelin.certificateFiles" -}}
tls:
  certFile: /var/lib/myelin/tls/hubble/server.crt
  keyFile: /var/lib/myelin/tls/hubble/server.key
  caFile: /var/lib/myelin/tls/hubble/client-ca.crt
{{- end -}}

{{- /* A PodDisruptionBudget: of .budget, for pods of the name .name, with the labels .labels. */ -}}
{{- define "myelin.budget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  namespace: {{ .namespace }}
  labels:
    {{- .labels | nindent 4 }}
spec:
  {{- if or .budget.minAvailable (eq (toString .budget.minAvailable) "0") }}
  minAvailable: {{ .budget.minAvailable }}
  {{- else }}
  maxUnavailable: {{ .budget.maxUnavailable }}
  {{- end }}
  {{- if .budget.unhealthyPodEvictionPolicy }}
  unhealthyPodEvictionPolicy: {{ .budget.unhealthyPodEvictionPolicy }}
  {{- end }}
  selector:
    matchLabels:
      k8s-app: {{ .name }}
{{- end -}}

{{- /* A ServiceMonitor .name: of .monitor, for the port .port of the Service with the label k8s-app .app. */ -}}
{{- define "myelin.monitor" -}}
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata:
  name: {{ .name }}
  namespace: {{ .namespace | default .release }}
  labels:
    {{- .labels | nindent 4 }}
    {{- if .monitor.labels }}
    {{- toYaml .monitor.labels | nindent 4 }}
    {{- end }}
  {{- if .monitor.annotations }}
  annotations:
    {{- toYaml .monitor.annotations | nindent 4 }}
  {{- end }}
spec:
  {{- if .monitor.jobLabel }}
  jobLabel: {{ .monitor.jobLabel | quote }}
  {{- end }}
  selector:
    matchLabels:
      k8s-app: {{ .app }}
  namespaceSelector:
    matchNames:
    - {{ .release }}
  endpoints:
  - port: {{ .port }}
    path: /metrics
    honorLabels: true
    interval: {{ .monitor.interval | quote }}
    {{- if .monitor.scrapeTimeout }}
    scrapeTimeout: {{ .monitor.scrapeTimeout | quote }}
    {{- end }}
    {{- if .monitor.relabelings }}
    relabelings:
      {{- toYaml .monitor.relabelings | nindent 6 }}
    {{- end }}
    {{- if .monitor.metricRelabelings }}
    metricRelabelings:
      {{- toYaml .monitor.metricRelabelings | nindent 6 }}
    {{- end }}
{{- end -}}

{{- /* A Certificate of cert-manager, in the Secret of its name. */ -}}
{{- define "myelin.certificate" -}}
apiVersion: cert-manager.io/v1
kind: Certificate
metadata:
  name: {{ .secret }}
  namespace: {{ .common.namespace }}
  labels:
    {{- .common.labels | nindent 4 }}
spec:
  issuerRef:
    {{- toYaml .common.issuer | nindent 4 }}
  secretName: {{ .secret }}
  commonName: {{ .name | quote }}
  dnsNames:
  - {{ .name | quote }}
  {{- range .more.extraDnsNames }}
  - {{ . | quote }}
  {{- end }}
  {{- if .more.extraIpAddresses }}
  ipAddresses:
  {{- range .more.extraIpAddresses }}
  - {{ . | quote }}
  {{- end }}
  {{- end }}
  duration: {{ .common.duration }}
  privateKey:
    rotationPolicy: Always
  usages: {{ .usages }}
  isCA: false
{{- end -}}

{{- /* Where pods of the Deployment .app run, by the values .at. */ -}}
{{- define "myelin.placement" -}}
{{- if .at.priorityClassName -}}
priorityClassName: {{ .at.priorityClassName }}
{{ end -}}
tolerations:
  {{- toYaml .at.tolerations | nindent 2 }}
nodeSelector:
  {{- toYaml .at.nodeSelector | nindent 2 }}
{{- if .at.affinity }}
affinity:
  {{- toYaml .at.affinity | nindent 2 }}
{{- end }}
{{- if .at.topologySpreadConstraints }}
topologySpreadConstraints:
{{- range .at.topologySpreadConstraints }}
-
  {{- toYaml . | nindent 2 }}
  {{- if not .labelSelector }}
  labelSelector:
    matchLabels:
      k8s-app: {{ $.app }}
  {{- end }}
{{- end }}
{{- end }}
{{- if .all.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml .all.imagePullSecrets | nindent 2 }}
{{- end }}
{{- end -}}
