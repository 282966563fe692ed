package labtest

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"myelin/operator/pki"
)

// Addresses of relays with TLS, which secureRelays starts.
const (
	relayTLS  = "127.0.0.1:4246" // without certificates of clients
	relayMTLS = "127.0.0.1:4247"
	relayName = "relay.myelin.test" // the name in the relays' certificate
)

// kubeconfig names an API server that does not exist.
const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: none, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: none, user: {}}]
contexts: [{name: lab, context: {cluster: none, user: none}}]
`

// secureRelays starts relays with TLS on node1, and writes the certificates and files that rows name.
func (h *hubbleLab) secureRelays(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	write := func(name string, data []byte) {
		path := filepath.Join(dir, name)
		check(t, os.WriteFile(path, data, 0o600))
		h.vars[name] = path
	}
	issue := func(authority, name string, r pki.Request) {
		ca, err := pki.NewAuthority(authority, time.Now(), time.Hour)
		check(t, err)
		r.CommonName, r.Validity = name, time.Hour
		pair, err := ca.Issue(r, time.Now())
		check(t, err)
		write(authority, ca.Certificate())
		write(name+"_CERT", pair.Cert)
		write(name+"_KEY", pair.Key)
	}
	issue("RELAY_CA", "RELAY", pki.Request{Names: []string{relayName}, Server: true})
	issue("CLIENT_CA", "CLIENT", pki.Request{Client: true})
	issue("OTHER_CA", "OTHER", pki.Request{Client: true})
	write("KUBECONFIG", []byte(kubeconfig))
	write("CONFIG", []byte(`denylist: ['{"verdict":["FORWARDED","TRANSLATED","AUDIT"]}']`))
	own := []string{"--tls-relay-server-cert-file", h.vars["RELAY_CERT"], "--tls-relay-server-key-file",
		h.vars["RELAY_KEY"]}
	h.relay(t, append(own, "--listen", relayTLS)...)
	h.relay(t, append(own, "--listen", relayMTLS, "--tls-relay-client-ca-files", h.vars["CLIENT_CA"])...)
}

// tlsRows reach relays with TLS.
func tlsRows() []invocation {
	const dropped = "observe --all --verdict DROPPED --to-port 81 "
	const trusted = "--tls-ca-cert-files $RELAY_CA --tls-server-name " + relayName
	const client = "--tls-client-cert-file $CLIENT_CERT --tls-client-key-file $CLIENT_KEY "
	every := []string{"flow.verdict=DROPPED & flow.l4.TCP.destination_port=81"}
	return []invocation{
		{server: relayTLS, args: dropped + "--tls " + trusted, every: every},
		{server: "tls://" + relayTLS, args: dropped + trusted, every: every},
		{server: relayTLS, args: dropped + "--tls --tls-allow-insecure", every: every},
		{server: relayTLS, args: dropped, fails: true, has: []string{"error reading server preface"}},
		{server: relayTLS, args: dropped + "--tls --tls-server-name " + relayName, fails: true,
			has: []string{"certificate signed by unknown authority"}},
		{server: relayTLS, args: dropped + "--tls --tls-ca-cert-files $RELAY_CA", fails: true,
			has: []string{"cannot validate certificate for 127.0.0.1"}},
		{server: relayTLS, args: dropped + "--tls --tls-ca-cert-files $RELAY_KEY", fails: true,
			has: []string{"must be a PEM encoded certificate"}},
		{server: relayTLS, args: dropped + "--tls --basic-auth-username u --basic-auth-password p " + trusted,
			every: every},
		{server: "relay", args: dropped + "--basic-auth-username u --basic-auth-password p", fails: true,
			has: []string{"transport level security"}},
		{server: relayMTLS, args: dropped + "--tls " + client + trusted, every: every},
		{server: relayMTLS, args: "list nodes --tls " + client + trusted, lines: 4, has: []string{"node3   Connected"}},
		{server: relayMTLS, args: dropped + "--tls " + trusted, fails: true, has: []string{"certificate required"}},
		{server: relayMTLS, args: dropped + "--tls " + strings.ReplaceAll(client, "CLIENT", "OTHER") + trusted,
			fails: true, has: []string{"unknown certificate authority"}},
	}
}

// serverRows reach servers otherwise, or not at all.
func serverRows() []invocation {
	const forward = "observe --port-forward --port-forward-port 0 --kubeconfig $KUBECONFIG "
	return []invocation{
		{server: "relay", args: "observe --last 1 --timeout 3s", has: []string{"default/"}},
		{server: "127.0.0.1:1", args: "observe --timeout 1s", fails: true, has: []string{"connection refused"}},
		{server: "relay", args: "list nodes --request-timeout 5s", lines: 4, has: []string{"node1   Connected"}},
		{server: "relay", args: "list nodes --request-timeout 1ns", fails: true, has: []string{"DeadlineExceeded"}},
		{server: "relay", args: forward + "--kube-context nothing", fails: true,
			has: []string{`context "nothing" does not exist`}},
		{server: "relay", args: forward + "--kube-context lab --kube-namespace cilium", fails: true,
			has: []string{"http://127.0.0.1:1/api/v1/namespaces/cilium/services/hubble-relay"}},
		{server: "relay", args: "observe --all --to-port 81 --config $CONFIG", has: []string{"DROPPED"},
			hasNot: []string{"FORWARDED"}},
		{server: "relay", args: "observe --uuid $UUID --debug", has: []string{"level=DEBUG",
			"Receiving flows from 3 nodes", "default/a1:$PORT"}},
		{server: "relay", args: "observe --uuid $UUID -D --silent-errors", has: []string{"default/a1:$PORT"},
			hasNot: []string{"Receiving flows from 3 nodes"}},
		{server: "relay", args: "observe --help", has: []string{"--field-mask"}},
	}
}

// timeRows print the time of a flow in each format.
func (h *hubbleLab) timeRows(t *testing.T) (rows []invocation) {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, h.vars["TIME"])
	check(t, err)
	for name, layout := range map[string]string{"StampMilli": time.StampMilli, "YearMonthDay": "2006-01-02",
		"YearMonthDayHour": "2006-01-02T15Z07:00", "YearMonthDayHourMinute": "2006-01-02T15:04Z07:00",
		"RFC3339": time.RFC3339, "RFC3339Milli": "2006-01-02T15:04:05.999Z07:00",
		"RFC3339Micro": "2006-01-02T15:04:05.999999Z07:00", "RFC3339Nano": time.RFC3339Nano,
		"RFC1123Z": time.RFC1123Z} {
		rows = append(rows, invocation{server: "node1", args: "observe --uuid $UUID --time-format " + name, lines: 1,
			has: []string{at.UTC().Format(layout) + ": default/a1:$PORT"}})
	}
	return rows
}

// unused are flags of `hubble observe` that no row has.
func (h *hubbleLab) unused(t *testing.T) []string {
	t.Helper()
	help, err := h.hubble(t.Context(), t, invocation{server: "relay", args: "observe --help"})
	check(t, err)
	flags := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^ +(?:(-\w), )?(--[a-z0-9-]+)`).FindAllStringSubmatch(help, -1) {
		if !h.used[m[2]] && !h.used[m[1]] {
			flags[m[2]] = true
		}
	}
	if len(flags) == 0 && !strings.Contains(help, "--print-raw-filters") {
		t.Fatalf("no flags in\n%s", help)
	}
	return slices.Sorted(maps.Keys(flags))
}

// stdin filters flows that come from standard input.
func (h *hubbleLab) stdin(ctx context.Context, t *testing.T, flows string) {
	t.Helper()
	h.used["--input-file"] = true
	cmd := h.Node("node1").Command(ctx, h.cli, "observe", "--input-file", "-", "--verdict", "AUDIT", "-o", "jsonpb")
	out := &strings.Builder{}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(flows), out, out
	check(t, h.Node("node1").Start(cmd))
	err := cmd.Wait()
	if err == nil {
		audited := invocation{every: []string{"flow.verdict=AUDIT & flow.destination.pod_name=s3"}}
		err = h.compare(t, audited, out.String())
	}
	if err != nil {
		t.Errorf("observe --input-file -: %v:\n%s", err, out)
	}
}
