# Sourced by install.sh: Hubble of a cluster, a relay and the web page as the chart installs them, with certificates
# that operators make.

# The relay wants a certificate of its clients.
hubble_values=(--set hubble.relay.enabled=true --set hubble.relay.tls.server.enabled=true
  --set hubble.relay.tls.server.mtls=true --set hubble.ui.enabled=true --set 'hubble.metrics.enabled={flow,drop}')

# forward SERVICE PORT:TARGET: `kubectl port-forward`.
forward() {
  background "forward-$1" administer -n kube-system port-forward "service/$1" "$2"
  eventually 20 "port-forward to $1" grep -q '^Forwarding' "$logs/forward-$1.log"
}

# hubble ARG...: the real CLI where scripts/hubble.sh has built it, which takes long; else `myelin`, with its flags.
hubble() {
  local cli=${XDG_CACHE_HOME:-$HOME/.cache}/myelin/hubble/hubble
  [ -x "$cli" ] || cli=$myelin
  inside "$cli" "$@" --server tls://localhost:4245 --tls-server-name ui.hubble-relay.cilium.io \
    --tls-ca-cert-files "$work/ca.crt"
}

# flows: those in the relay, of each node.
flows() {
  local node
  hubble observe --all -o json --tls-client-cert-file "$work/tls.crt" --tls-client-key-file "$work/tls.key" \
    > "$work/flows"
  for node in "${nodes[@]}"; do grep -q "\"node_name\":\"default/$node\"" "$work/flows" || return 1; done
}

ask() { (in_control curl -sf --max-time 10 "$1"); } # URL
page_nodes() { [ "$(ask http://localhost:12000/api/health | grep -o '"NODE_CONNECTED"' | wc -l)" = ${#nodes[@]} ]; }
page() { ask http://localhost:12000/ | grep -q '<script'; }
flow_metrics() { ask "http://$(address4 n1):9965/metrics" | grep -q '^hubble_flows_processed_total'; }

hubble_test() {
  local what
  for what in hubble-relay hubble-ui; do
    cluster kubectl -n kube-system rollout status "deploy/$what" --timeout=90s > /dev/null
  done
  for what in ca.crt tls.crt tls.key; do
    cluster kubectl -n kube-system get secret hubble-ui-client-certs -o "jsonpath={.data.${what/./\\.}}" |
      base64 -d > "$work/$what"
  done
  forward hubble-relay 4245:443
  forward hubble-ui 12000:80
  eventually 30 "flows of ${nodes[*]} in the relay" flows
  if hubble observe --last 1 > "$work/refused" 2>&1; then
    die "the relay answers a client without a certificate: $(cat "$work/refused")"
  fi
  eventually 10 "nodes in the web page" page_nodes
  eventually 10 "the web page" page
  eventually 10 "metrics of flows" flow_metrics
  finish forward-hubble-relay KILL
  finish forward-hubble-ui KILL
}
