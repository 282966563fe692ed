package labtest

import (
	"fmt"
	"net/http"
	"testing"
	"time"
)

// hubbleL7 lets paths of api be read, and lookup reach names of example.test in the world; the proxy answers for both.
const hubbleL7 = `apiVersion: v1
kind: Pod
metadata: {name: api, labels: {app: api}}
spec:
  nodeName: node2
  containers: [{name: none, image: none}]
---
apiVersion: v1
kind: Pod
metadata: {name: lookup, labels: {app: lookup}}
spec:
  nodeName: node1
  containers: [{name: none, image: none}]
---
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: public}
spec:
  endpointSelector: {matchLabels: {app: api}}
  ingress:
  - toPorts: [{ports: [{port: "80", protocol: TCP}], rules: {http: [{method: GET, path: "/public/.*"}]}}]
---
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: lookups}
spec:
  endpointSelector: {matchLabels: {app: lookup}}
  egress:
  - toEntities: [world]
    toPorts: [{ports: [{port: "53", protocol: UDP}], rules: {dns: [{matchPattern: "*.example.test"}]}}]
  - toFQDNs: [{matchPattern: "*.example.test"}]
---
`

// traceID is the trace of the requests to api.
const traceID = "4bf92f3577b34da6a3ce929d0e0e4736"

// proxied makes flows of layer 7: requests that are allowed and refused, and names of which addresses are used.
func (h *hubbleLab) proxied(t *testing.T) {
	t.Helper()
	api, world, lookup := h.end("default/api"), h.end("world"), h.end("default/lookup")
	h.serveHTTP(api, 80)
	h.serveDNS(world)
	h.serveHTTP(world, 443)
	for _, f := range h.stack.families {
		client := h.client(h.end("default/a1"))
		for path, want := range map[string]int{"/public/index?user=1": http.StatusOK, "/secret": http.StatusForbidden} {
			eventually(t, path+" is asked for", 20*time.Second, func() error {
				to := "http://" + at(api.addr(f), 80).String() + path
				r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, to, nil)
				check(t, err)
				r.Header.Set("Traceparent", "00-"+traceID+"-00f067aa0ba902b7-01")
				answer, err := client.Do(r)
				if err != nil {
					return err
				}
				answer.Body.Close()
				if answer.StatusCode != want {
					return fmt.Errorf("status %d, want %d", answer.StatusCode, want)
				}
				return nil
			})
		}
		eventually(t, "lookup reaches a name", 20*time.Second, func() error {
			got, code, err := resolve(t.Context(), lookup, world.addr(f), "1.example.test.")
			if err == nil && !connects(t.Context(), lookup, at(got, 443)) {
				err = fmt.Errorf("no connection to %s (%s)", got, code)
			}
			return err
		})
		_, _, err := resolve(t.Context(), lookup, world.addr(f), "1.example.com.")
		check(t, err)
	}
}

// proxyRows are of flows that the proxy reports, and of DNS names.
func proxyRows() []invocation {
	const web, dns, names = "flow.l7.http.", "flow.l7.dns.", "flow.destination_names=1.example.test"
	return []invocation{
		all("--protocol http", web+"method=GET", "flow.event_type.type=129", "node_name=default/node2"),
		all("-t l7 --to-pod api", "flow.Type=L7", "flow.destination.pod_name=api"),
		all("--http-method get --verdict DROPPED", web+"code=403", "flow.verdict=DROPPED", web+"url$=/secret"),
		nothing("--http-method PUT"),
		all("--http-status 403", web+"code=403", "flow.drop_reason_desc=POLICY_DENIED"),
		all("--http-status 2+", web+"code=200", "flow.l7.type=RESPONSE"),
		nothing("--http-status 5+"),
		all("--http-path ^/public/[a-z]+$", web+"url$=/public/index?user=1"),
		nothing("--http-path ^/index"),
		all("--http-url http://.*/secret", web+"url$=/secret"),
		nothing("--http-url https://"),
		nothing("--http-header traceparent:00-" + traceID + "-00f067aa0ba902b7-01"), // headers are not recorded
		all("--trace-id "+traceID, web+"method=GET", "flow.trace_context.parent.trace_id="+traceID),
		nothing("--trace-id 4bf92f3577b34da6a3ce929d0e0e4737"),
		all("--protocol dns", dns+"query^=1.example.",
			"flow.source.pod_name=lookup | flow.destination.pod_name=lookup"),
		all("--protocol dns --verdict DROPPED", dns+"query=1.example.com.", "flow.l7.type=REQUEST"),
		all(`--allowlist {"dns_query":["^1.example.test.$"]}`, dns+"query=1.example.test."),
		{server: "node1", args: "observe --all -t l7 -4", has: []string{
			"dns-request proxy DROPPED (DNS Query 1.example.com.)", "dns-response proxy FORWARDED (DNS Answer "}},
		{server: "node2", args: "observe --all -t l7 --http-status 200 -6", has: []string{
			"http-response FORWARDED (HTTP/1.1 200 ", "(GET http://[fd00:"}},
		{server: "relay", args: "status --debug", has: []string{"): Ok"}},
		all("--to-fqdn *.example.test --to-port 443", names, "flow.source.pod_name=lookup", "flow.l4.TCP"),
		all("--to-fqdn 1.example.test -6 --tcp-flags SYN", names, "flow.IP.ipVersion=IPv6"),
		all("--from-fqdn 1.example.test", "flow.source_names=1.example.test", "flow.destination.pod_name=lookup"),
		all("--fqdn *.example.test --port 443 --not --from-fqdn *", names),
		nothing("--to-fqdn *.example.com"),
		{server: "node1", args: "observe --to-fqdn *.example.test --to-port 443" + allFields, has: []string{
			"default/lookup:", "-> 1.example.test:443 (world"}},
		{server: "node1", args: "observe --to-fqdn *.example.test --to-port 443 --ip-translation=false" + allFields,
			has: []string{":443 (world"}, hasNot: []string{"example.test"}},
	}
}
