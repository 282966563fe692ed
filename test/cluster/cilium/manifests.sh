# Sourced: objects of the migration's test. Pods answer /hostname at port 8080 with their name.

image=registry.k8s.io/e2e-test-images/agnhost:2.56

# echoes: one pod a node, a Service of both families and a node port for them.
echoes() {
  cat << YAML
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: echo}
spec:
  selector: {matchLabels: {app: echo}}
  template:
    metadata: {labels: {app: echo}}
    spec:
      terminationGracePeriodSeconds: 1
      tolerations: [{operator: Exists}]
      containers:
      - {name: c, image: $image, args: [netexec],
         readinessProbe: {httpGet: {path: /hostname, port: 8080}, periodSeconds: 1}}
---
apiVersion: v1
kind: Service
metadata: {name: echo}
spec: {type: NodePort, ipFamilyPolicy: RequireDualStack, selector: {app: echo},
  ports: [{port: 80, targetPort: 8080, nodePort: 30080}]}
YAML
}

# keeper NAME NODE: a pod that sends back what it gets at ports 7004 and 7006, to one client each of IPv4 and IPv6.
keeper() {
  cat << YAML
apiVersion: v1
kind: Pod
metadata: {name: $1, labels: {app: keeper}}
spec:
  nodeName: $2
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: $image
    command: [bash, -c, 'for f in 4 6; do mkfifo /tmp/\$f;
      (exec nc -\$f -lk 700\$f <> /tmp/\$f > /tmp/\$f) & done; wait']
YAML
}

# talker NAME NODE ADDRESS FAMILY: a pod that has one connection, for a word and its answer five times a second; it ends
# when that breaks.
talker() {
  cat << YAML
apiVersion: v1
kind: Pod
metadata: {name: $1, labels: {app: talker}}
spec:
  nodeName: $2
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: $image
    command: [bash, -c, 'exec 3<> /dev/tcp/$3/700$4; for ((i = 1; ; i++)); do echo \$i >&3;
      read -t 5 back <&3 && [ \$back = \$i ] || exit 1; echo \$i > /tmp/count; sleep 0.2; done']
YAML
}

# policy: of users, as Cilium has it: app=closed takes app=friend alone.
policy() {
  cat << YAML
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: closed}
spec:
  endpointSelector: {matchLabels: {app: closed}}
  ingress: [{fromEndpoints: [{matchLabels: {app: friend}}], toPorts: [{ports: [{port: "8080", protocol: TCP}]}]}]
YAML
}

# server NAME NODE APP
server() {
  cat << YAML
---
apiVersion: v1
kind: Pod
metadata: {name: $1, labels: {app: $3}}
spec:
  nodeName: $2
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: $image, args: [netexec]}]
YAML
}

# cilium_values: native routes, no kube-proxy; this machine has no CAP_SYS_RESOURCE to give, and no modules.
cilium_values() {
  cat << YAML
image: {override: "localhost/cilium:v$cilium_version", pullPolicy: Never}
operator: {image: {override: "localhost/cilium:v$cilium_version", pullPolicy: Never}, replicas: 1}
ipam: {mode: kubernetes}
ipv6: {enabled: true}
routingMode: native
autoDirectNodeRoutes: true
ipv4NativeRoutingCIDR: 10.244.0.0/16
ipv6NativeRoutingCIDR: fd00:244::/56
kubeProxyReplacement: true
k8sServiceHost: $server
k8sServicePort: 6443
envoy: {enabled: false}
l7Proxy: false
hubble: {enabled: false}
securityContext:
  capabilities:
    ciliumAgent: [CHOWN, KILL, NET_ADMIN, NET_RAW, IPC_LOCK, SYS_ADMIN, DAC_OVERRIDE, FOWNER, SETGID, SETUID]
    cleanCiliumState: [NET_ADMIN, SYS_ADMIN]
YAML
}
