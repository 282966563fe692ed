package main

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"

	apiv1 "myelin/api/v1"
)

// rows makes a part of an answer, a line of cells each.
func rows(columns []string, cells ...[]string) *apiv1.ListResponse {
	r := &apiv1.ListResponse{Columns: columns}
	for _, c := range cells {
		r.Rows = append(r.Rows, &apiv1.ListRow{Cells: c})
	}
	return r
}

// TestServices compares with testdata; "go test ./cmd/myelin -args update" writes it.
func TestServices(t *testing.T) {
	addresses := []*apiv1.ListResponse{
		rows([]string{"ID", "Frontend", "Service Type", "Service", "Port", "Backend"},
			[]string{"1", "10.96.0.10:80/TCP", "ClusterIP", "demo/web", "http",
				"1 => 10.0.1.2:8080/TCP (active)\n2 => 10.0.2.2:8080/TCP (terminating, weight 5)"},
			[]string{"1", "[fd00:10:96::a]:80/TCP", "ClusterIP", "demo/web", "http",
				"1 => [fd00:10:0:1::2]:8080/TCP (active)"}),
		rows(nil, []string{"12", "0.0.0.0:30080/TCP/i", "NodePort", "demo/none", "", "none: refused"}),
	}
	service := []*apiv1.ListResponse{rows([]string{"ID", "Service", "Type", "Options", "Frontends", "Backends",
		"Problems", "Source"},
		[]string{"1", "demo/web", "NodePort", "affinity=3h0m0s external=local",
			"10.96.0.10:80/TCP (ClusterIP, port http): 2 backends\n0.0.0.0:30080/TCP (NodePort, port http): none on " +
				"this node",
			"10.0.1.2:8080/TCP (active, node1)\n10.0.2.2:8080/TCP (terminating, node2, weight 5)",
			"spec.ports[0].nodePort: 99 is not in nodePort.range 30000..32767", "manifests:web.yaml"})}
	backends := []*apiv1.ListResponse{rows([]string{"ID", "Address", "State", "Node", "Zone", "Weight", "Used by"},
		[]string{"1", "10.0.1.2:8080/TCP", "active", "node1", "", "1", "demo/web"},
		[]string{"2", "[fd00:10:0:2::2]:8080/TCP", "maintenance", "node2", "b", "5", "demo/other(2) demo/web"})}
	endpoints := []*apiv1.ListResponse{rows([]string{"ID", "Pod", "Policy (ingress)", "Policy (egress)", "Identity",
		"Labels", "IPv4"},
		[]string{"2", "demo/web", "Enabled", "Disabled", "65536", "k8s:app=web\nk8s:io.kubernetes.pod.namespace=demo",
			"10.0.1.2"},
		[]string{"3", "demo/new", "", "", "5", "reserved:init", ""})}
	for _, test := range []struct {
		name  string
		args  []string
		parts []*apiv1.ListResponse
	}{
		{"service-list", []string{"service", "list"}, addresses},
		{"service-list-none", []string{"service", "list"}, []*apiv1.ListResponse{rows(addresses[0].GetColumns())}},
		{"service-get", []string{"service", "get", "demo/web"}, service},
		{"backend-list", []string{"backend", "list"}, backends},
		{"endpoint-list", []string{"endpoint", "list"}, endpoints},
	} {
		out, _, err := runNoun(append(test.args, "--socket", serveFake(t, &fake{parts: test.parts}))...)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		golden(t, test.name, out)
	}
}

// golden compares with testdata, or writes it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".txt")
	if slices.Contains(flag.Args(), "update") {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
	}
}

func TestServicesJSON(t *testing.T) {
	socket := serveFake(t, &fake{parts: []*apiv1.ListResponse{{Json: []byte(`[{"id":1,"backends":[{"id":3}]}]`)},
		{Json: []byte(`[{"id":2}]`)}}})
	var got []struct{ ID int }
	if out, _, err := runNoun("service", "list", "-o", "json", "--socket",
		socket); err != nil || json.Unmarshal([]byte(out), &got) != nil || len(got) != 2 {
		t.Errorf("%q, %v", out, err)
	}
	none := serveFake(t, &fake{parts: []*apiv1.ListResponse{rows([]string{"ID", "Service"})}})
	if _, _, err := runNoun("service", "get", "demo/none", "--socket", none); err == nil ||
		err.Error() != "there is no service demo/none" {
		t.Errorf("%v", err)
	}
}
