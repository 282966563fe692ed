# Sourced: keys, the nodes' network, and what runs beside the nodes: etcd, kube-apiserver, kube-controller-manager,
# kube-scheduler.
services4=10.96.0.0/16 services6=fd00:96::/112 pods=10.244.0.0/16,fd00:244::/56

key() { openssl ecparam -genkey -name prime256v1 -noout -out "$pki/$1.key" 2> /dev/null; } # NAME

# certificate NAME SUBJECT USAGE [NAMES]: signed by the cluster's own authority, for ten days.
certificate() {
  key "$1"
  openssl req -new -key "$pki/$1.key" -subj "$2" -out "$pki/$1.csr"
  {
    echo keyUsage=critical,digitalSignature,keyEncipherment
    echo "extendedKeyUsage=$3"
    [ -z "${4-}" ] || echo "subjectAltName=$4"
  } > "$pki/$1.ext"
  openssl x509 -req -in "$pki/$1.csr" -CA "$pki/ca.crt" -CAkey "$pki/ca.key" -CAcreateserial -days 10 \
    -extfile "$pki/$1.ext" -out "$pki/$1.crt" 2> /dev/null
}

# user NAME SUBJECT: a certificate, and a kubeconfig that has it inside.
user() {
  certificate "$1" "$2" clientAuth
  cat > "$pki/$1.kubeconfig" << YAML
apiVersion: v1
kind: Config
clusters: [{name: k, cluster: {server: "https://$server:6443", 
  certificate-authority-data: $(base64 -w0 "$pki/ca.crt")}}]
users: [{name: u, user: {client-certificate-data: $(base64 -w0 "$pki/$1.crt"),
  client-key-data: $(base64 -w0 "$pki/$1.key")}}]
contexts: [{name: c, context: {cluster: k, user: u}}]
current-context: c
YAML
}

keys() {
  local node
  mkdir -p "$pki"
  key ca
  openssl req -x509 -new -key "$pki/ca.key" -subj /CN=ca -days 10 -out "$pki/ca.crt" \
    -addext keyUsage=critical,keyCertSign,digitalSignature
  openssl genrsa -out "$pki/accounts.key" 2048 2> /dev/null
  openssl rsa -in "$pki/accounts.key" -pubout -out "$pki/accounts.pub" 2> /dev/null
  certificate apiserver /CN=kube-apiserver serverAuth \
    "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local,IP:127.0.0.1,IP:$server,IP:10.96.0.1,IP:fd00:96::1"
  certificate kubelets /O=system:masters/CN=apiserver clientAuth
  certificate front-proxy /CN=front-proxy clientAuth
  user admin /O=system:masters/CN=admin
  user kube-controller-manager /CN=system:kube-controller-manager
  user kube-scheduler /CN=system:kube-scheduler
  user myelin /CN=myelin
  for node in "${nodes[@]}"; do
    user "$node" "/O=system:nodes/CN=system:node:$node"
    certificate "serve-$node" "/CN=$node" serverAuth "DNS:$node,IP:$(address4 "$node"),IP:$(address6 "$node")"
  done
}

# join PLACE HOST: a namespace with eth0 on the nodes' bridge; HOST is the last byte of its addresses.
join() {
  ip netns add "$name-$1"
  ip -n "$name-$1" link set lo up
  ip -n "$name-lan" link add "$1" type veth peer name eth0 netns "$name-$1"
  ip -n "$name-lan" link set "$1" master br0 up
  addresses "$1" "$2"
  ip -n "$name-$1" link set eth0 up
}

addresses() { # PLACE HOST
  ip -n "$name-$1" addr add "172.30.0.$2/24" dev eth0
  ip -n "$name-$1" addr add "fd30::$2/64" dev eth0 nodad
}

to_the_world() { # NODE
  ip -n "$name-$1" route replace default via "$server"
  ip -n "$name-$1" -6 route replace default via fd30::10
}

# network: bridge, control plane, nodes. The control plane is the nodes' default gateway, and stands for the world.
network() {
  local node
  ip netns add "$name-lan"
  ip -n "$name-lan" link add br0 type bridge
  ip -n "$name-lan" link set br0 up
  join cp 10
  ip -n "$name-cp" route add default via "$(address4 n1)" # some address must be chosen to speak from
  for node in "${nodes[@]}"; do join_node "$node"; done
}

join_node() { # NODE
  join "$1" "$(host "$1")"
  to_the_world "$1"
}

# pod_routes: the API server asks pods by their own addresses, for `kubectl proxy` and webhooks.
pod_routes() {
  local node cidr
  for node in "${nodes[@]}"; do
    for cidr in $(kubectl get node "$node" -o jsonpath='{.spec.podCIDRs[*]}'); do
      case $cidr in
        *:*) ip -n "$name-cp" -6 route replace "$cidr" via "$(address6 "$node")" ;;
        *) ip -n "$name-cp" route replace "$cidr" via "$(address4 "$node")" ;;
      esac
    done
  done
}

control_plane() {
  background etcd in_control "$bin/etcd" --data-dir "$home/etcd" --unsafe-no-fsync \
    --listen-client-urls http://127.0.0.1:2379 \
    --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380 --log-level warn
  background kube-apiserver in_control "$bin/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 \
    --advertise-address=$server --secure-port=6443 --allow-privileged=true --authorization-mode=Node,RBAC \
      --enable-admission-plugins=NodeRestriction \
    --client-ca-file="$pki/ca.crt" --tls-cert-file="$pki/apiserver.crt" --tls-private-key-file="$pki/apiserver.key" \
    --kubelet-client-certificate="$pki/kubelets.crt" --kubelet-client-key="$pki/kubelets.key" \
      --kubelet-preferred-address-types=InternalIP \
    --service-account-issuer=https://kubernetes.default.svc.cluster.local \
      --service-account-key-file="$pki/accounts.pub" \
    --service-account-signing-key-file="$pki/accounts.key" --service-cluster-ip-range=$services4,$services6 \
    --requestheader-client-ca-file="$pki/ca.crt" --requestheader-allowed-names=front-proxy \
      --requestheader-username-headers=X-Remote-User \
    --requestheader-group-headers=X-Remote-Group --requestheader-extra-headers-prefix=X-Remote-Extra- \
    --proxy-client-cert-file="$pki/front-proxy.crt" --proxy-client-key-file="$pki/front-proxy.key" \
      --enable-aggregator-routing=true
  eventually 90 "kube-apiserver, see $logs/kube-apiserver.log" kubectl get --raw /readyz
  background kube-controller-manager in_control "$bin/kube-controller-manager" \
    --kubeconfig="$pki/kube-controller-manager.kubeconfig" \
    --authentication-kubeconfig="$pki/kube-controller-manager.kubeconfig" \
      --authorization-kubeconfig="$pki/kube-controller-manager.kubeconfig" \
    --root-ca-file="$pki/ca.crt" --service-account-private-key-file="$pki/accounts.key" \
      --use-service-account-credentials=true --leader-elect=false \
    --cluster-signing-cert-file="$pki/ca.crt" --cluster-signing-key-file="$pki/ca.key" --allocate-node-cidrs=true \
      --cluster-cidr=$pods \
    --service-cluster-ip-range=$services4,$services6 --bind-address=127.0.0.1
  background kube-scheduler in_control "$bin/kube-scheduler" --kubeconfig="$pki/kube-scheduler.kubeconfig" \
    --authentication-kubeconfig="$pki/kube-scheduler.kubeconfig" \
      --authorization-kubeconfig="$pki/kube-scheduler.kubeconfig" --leader-elect=false --bind-address=127.0.0.1
}
