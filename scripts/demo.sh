#!/bin/bash
# demo.sh: runs a cluster of two nodes on this machine, from YAML to traffic, in well under a minute. Needs root; uses
# only network namespaces of its own. $MYELIN_BIN is the directory of the programs; if it is not set they are built
# first. The exit status is 1 if a step does not show what it claims.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."

[ "$(id -u)" = 0 ] || { echo "demo: must run as root, to create network namespaces" >&2; exit 1; }
command -v ip > /dev/null && command -v ping > /dev/null || scripts/deps.sh demo
if [ -z "${MYELIN_BIN:-}" ]; then
  make build
  MYELIN_BIN=$PWD/bin
fi

name=demo$$
files=$(mktemp -d)
step=0 failed=0 bold='' plain=''
if [ -t 1 ]; then bold=$'\e[1m' plain=$'\e[0m'; fi

lab() { local verb=$1; shift; "$MYELIN_BIN/myelin" lab "$verb" -n "$name" "$@"; }
on() { lab exec "$@"; } # on PLACE -- COMMAND...
end() {
  local status=$?
  trap - EXIT INT TERM
  rm -f "$files/go"
  lab down || status=1
  rm -rf "$files"
  exit "$status"
}
trap end EXIT
trap 'exit 130' INT TERM

say() { step=$((step + 1)); printf '\n%s%d. %s%s\n\n' "$bold" "$step" "$*" "$plain"; }
show() { sed 's/^/   /'; }
# expect WHAT CONDITION...: prints the result and remembers a failure.
expect() { local what=$1; shift; if "$@"; then echo "   => $what"; else echo "   => FAILED: $what"; failed=1; fi; }

# address PLACE FAMILY: the first global address of eth0 there.
address() { on "$1" -- ip -o "-$2" addr show dev eth0 scope global | awk '{ sub("/.*", "", $4); print $4; exit }'; }
# url ADDRESS: of the HTTP server there.
url() { case $1 in *:*) echo "http://[$1]:8080/" ;; *) echo "http://$1:8080/" ;; esac; }
# forwarded NODE: packets that the node's own stack has forwarded, IPv4 and IPv6.
forwarded() {
  on "$1" -- cat /proc/net/snmp /proc/net/snmp6 | awk '
    $1 == "Ip:" && !at { for (i = 2; i <= NF; i++) if ($i == "ForwDatagrams") at = i; next }
    $1 == "Ip:" { n += $at }
    $1 == "Ip6OutForwDatagrams" { n += $2 }
    END { print n }'
}
# sent FILE ADDRESS: succeeds if the response in FILE names ADDRESS as the client.
sent() { grep -F "client" "$1" | grep -qF "$2"; }
# ask FROM ADDRESS CLIENT WHAT: sends one request, whose response must name CLIENT as the client's address.
ask() {
  echo "   $ myelin lab exec $1 -- myelin lab call $(url "$2")"
  on "$1" -- myelin lab call --wait 5s "$(url "$2")" > "$files/answer" || true
  show < "$files/answer"
  expect "$4" sent "$files/answer" "$3"
}

say "Start two nodes with an agent each, and four pods, from the YAML in examples/two-nodes."
up=(-f examples/two-nodes --set ipv6.enabled=true --set autoDirectNodeRoutes=true --set socketLB.enabled=true)
lab up "${up[@]}" > "$files/up"
echo "   $ myelin lab up ${up[*]}"
sed -n '/^lab /,$p' "$files/up" | show
echo "   (every \`myelin lab\` command of this demo is run with -n $name)"

client4=$(address demo/client1 4) client6=$(address demo/client1 6)
server4=$(address demo/server2 4) server6=$(address demo/server2 6)
node4=$(address node1 4) node6=$(address node1 6)
before=$(($(forwarded node1) + $(forwarded node2)))

say "A pod connects to a pod on the other node, over IPv4 and IPv6."
ask demo/client1 "$server4" "$client4" "the server saw the pod's own address, $client4"
ask demo/client1 "$server6" "$client6" "the server saw the pod's own address, $client6"

say "It connects to a Service with two backends: the socket is translated at connect(), so no packet has to be."
# service ADDRESS: sends 16 requests and shows which servers have answered.
service() {
  echo "   $ myelin lab exec demo/client1 -- myelin lab call http://$1/      (16 times)"
  for _ in {1..16}; do on demo/client1 -- myelin lab call --wait 5s "http://$1/" | grep '^server'; done |
    sort | uniq -c | show
}
service 10.96.0.10 | tee "$files/service"
expect "both servers have answered" [ "$(grep -c 'server  demo/server' "$files/service")" = 2 ]
service "[fd00:96::10]" | tee "$files/service"
expect "both servers have answered" [ "$(grep -c 'server  demo/server' "$files/service")" = 2 ]
echo "   $ myelin lab exec node1 -- myelin service list"
on node1 -- myelin service list | show

say "It connects to a server outside the cluster, which has no route to pod addresses: the node masquerades."
ask demo/client1 198.51.100.1 "$node4" "the server saw the node's address, $node4"
ask demo/client1 2001:db8:64::1 "$node6" "the server saw the node's address, $node6"

say "The kernel's network stack has forwarded none of these packets: eBPF redirects them from device to device."
after=$(($(forwarded node1) + $(forwarded node2)))
echo "   ForwDatagrams and Ip6OutForwDatagrams of both nodes: $before before, $after after"
expect "$((after - before)) packets forwarded by the stack" [ "$after" = "$before" ]

say "The pod sends packets with a spoofed source address: they are dropped, and counted by drop reason."
on demo/client1 -- ip addr add 172.16.9.9/32 dev eth0
echo "   $ myelin lab exec demo/client1 -- ping -c3 -I 172.16.9.9 $server4"
on demo/client1 -- ping -q -c3 -i0.2 -W1 -I 172.16.9.9 "$server4" 2>&1 | grep 'packet loss' | show || true
on demo/client1 -- ip addr del 172.16.9.9/32 dev eth0
on node1 -- myelin drops > "$files/drops"
echo "   $ myelin lab exec node1 -- myelin drops"
show < "$files/drops"
expect "\"spoofed address\" has counted the 3 packets" grep -Eq 'drop +spoofed address +3 ' "$files/drops"

say "The status of the agent on node1: what was configured, and what the kernel supports."
on node1 -- myelin status > "$files/status" || failed=1
echo "   $ myelin lab exec node1 -- myelin status"
show < "$files/status"

say "The conntrack entries of node1: only masqueraded connections need one here."
on node1 -- myelin flow list > "$files/flows"
echo "   $ myelin lab exec node1 -- myelin flow list"
cut -c 1-150 "$files/flows" | show
expect "both connections to the world have a conntrack entry" \
  [ "$(grep -cE '198\.51\.100\.1|2001:db8:64::1' "$files/flows")" = 2 ]

say "A NetworkPolicy allows ingress to the servers only from pods of team red."
lab apply -f examples/policies > /dev/null
echo "   $ myelin lab apply -f examples/policies"
echo "   $ myelin lab exec node1 -- myelin policy list"
on node1 -- myelin policy list | show
# refused FROM: waits until the server does not answer the pod, since agents need a moment to apply the policy.
refused() {
  for _ in {1..50}; do
    on "$1" -- myelin lab call --timeout 200ms "$(url "$server4")" &> /dev/null || return 0
    sleep 0.1
  done
  return 1
}
expect "client2, of team blue, gets no response" refused demo/client2
ask demo/client1 "$server4" "$client4" "client1, of team red, gets a response"
on node2 -- myelin drops | grep -E 'Hook|drop +policy' | show
expect "node2 has counted the packets that no rule allows" grep -q 'policy no rule' <(on node2 -- myelin drops)
echo "   $ myelin lab delete -f examples/policies"
lab delete -f examples/policies > /dev/null
on demo/client2 -- myelin lab call --wait 5s "$(url "$server4")" > "$files/answer" || true
expect "after the policy is deleted, client2 gets a response" grep -q '^server' "$files/answer"

say "Traffic continues while the agent is killed with SIGKILL, stays down for two seconds and starts again."
requests() { # requests ADDRESS NAME: sends one request after the other until the file "go" is removed
  local good=0 bad=0
  while [ -e "$files/go" ]; do
    if on demo/client1 -- myelin lab call --timeout 1s "$(url "$1")" &> /dev/null; then
      good=$((good + 1))
    else
      bad=$((bad + 1))
    fi
  done
  echo "$good $bad" > "$files/requests-$2"
}
touch "$files/go"
requests "$server4" pod & requests 198.51.100.1 world &
on demo/client1 -- ping -q -c150 -i0.02 -W1 "$server6" > "$files/ping" 2>&1 &
sleep 0.5
echo "   $ myelin lab agent kill node1"
lab agent kill node1
sleep 2
echo "   $ myelin lab agent start node1"
lab agent start node1
sleep 0.5
rm "$files/go"
wait
for to in pod world; do
  read -r good bad < "$files/requests-$to"
  expect "requests to the $to: $good answered, $bad lost" [ "$good" -gt 0 -a "$bad" = 0 ]
done
grep 'packet loss' "$files/ping" | show
expect "no ping lost" grep -q ' 0% packet loss' "$files/ping"

say "Remove the lab."
[ "$failed" = 0 ] || { echo "demo: a step did not show what it claims" >&2; exit 1; }
echo "   $ myelin lab down"
