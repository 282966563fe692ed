package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	apiv1 "myelin/api/v1"
)

func outputOf(t *testing.T, text string) *output {
	t.Helper()
	o := &output{}
	if err := o.Set(text); err != nil {
		t.Fatalf("-o %s: %v", text, err)
	}
	return o
}

func TestOutput(t *testing.T) {
	const rows = `[{"pod":"demo/client","id":2,"cookie":18446744073709551615,"labels":["a","b"]},` +
		`{"pod":"demo/web","id":65535}]`
	for format, want := range map[string]string{
		"json": "[\n  {\n    \"pod\": \"demo/client\",\n    \"id\": 2,\n    \"cookie\": 18446744073709551615,\n    " +
			"\"labels\": [\n      \"a\",\n      \"b\"\n    ]\n  },\n" +
			"  {\n    \"pod\": \"demo/web\",\n    \"id\": 65535\n  }\n]\n",
		"yaml": "- cookie: 18446744073709551615\n  id: 2\n  labels:\n  - a\n  - b\n  pod: " +
			"demo/client\n- id: 65535\n  pod: demo/web\n",
		"jsonpath={[*].pod}":         "demo/client demo/web",
		"jsonpath=[0].id":            "2",
		"jsonpath={[?(@.id>9)].pod}": "demo/web",
		// a key that an object lacks is no error, as with kubectl
		"jsonpath={[1].labels}":                            "",
		`jsonpath={range [*]}{.id}{"\t"}{.pod}{"\n"}{end}`: "2\tdemo/client\n65535\tdemo/web\n",
	} {
		var got bytes.Buffer
		if err := outputOf(t, format).writeJSON(&got, []byte(rows)); err != nil || got.String() != want {
			t.Errorf("-o %s: %v, got\n%s\nwant\n%s", format, err, &got, want)
		}
	}
	for format, want := range map[string]string{
		"json": "{\"id\":2}\n", "yaml": "---\nid: 2\n", "jsonpath={.id}": "2\n", "jsonpath=id": "2\n",
	} {
		var got bytes.Buffer
		if err := outputOf(t, format).writeItem(&got, map[string]int{"id": 2}); err != nil || got.String() != want {
			t.Errorf("-o %s of a stream: %v, %q, want %q", format, err, &got, want)
		}
	}
	for _, bad := range []string{"xml", "JSON", "json=x", "jsonpath", "jsonpath=", "jsonpath={.a"} {
		if err := (&output{}).Set(bad); err == nil {
			t.Errorf("-o %s is taken", bad)
		}
	}
}

// TestOutputOfCommands: each command that has -o takes every format, and refuses what is none before it asks an agent.
func TestOutputOfCommands(t *testing.T) {
	seen := 0
	walk(rootCommand(), func(path []string, has bool) {
		// manifests as YAML; flows as the hubble CLI does; objects as kubectl does
		if !has || path[0] == "install" || path[0] == "observe" || slices.Equal(path, []string{"lab", "get"}) {
			return
		}
		seen++
		_, err := runRoot(append(path, "-o", "xml")...)
		if err == nil || !strings.Contains(err.Error(), "want json, yaml, wide or jsonpath=TEMPLATE") {
			t.Errorf("%s -o xml: %v", strings.Join(path, " "), err)
		}
	})
	if seen < 40 {
		t.Errorf("%d commands have -o, at least 40 are there", seen)
	}
}

func TestNounFormats(t *testing.T) {
	f := &fake{
		parts: []*apiv1.ListResponse{
			{Json: []byte(`[{"id":2,"pod":"demo/client"}]`)},
			{Json: []byte(`[{"id":3,"pod":"demo/web"}]`)},
		},
	}
	socket := serveFake(t, f)
	for format, want := range map[string]string{
		"yaml": "- id: 2\n  pod: demo/client\n- id: 3\n  pod: demo/web\n", "jsonpath={[*].id}": "2 3",
	} {
		if out, _, err := runNoun("endpoint", "list", "-o", format, "--socket", socket); out != want || err != nil {
			t.Errorf("-o %s: %q, %v", format, out, err)
		}
	}
	if f.asked.GetWide() || !f.asked.GetJson() {
		t.Errorf("asked %v", f.asked)
	}
	f.parts = f.parts[:1]
	if out, _, err := runNoun("endpoint", "get", "2", "-o", "yaml", "--socket",
		socket); out != "id: 2\npod: demo/client\n" ||
		err != nil {
		t.Errorf("%q, %v", out, err)
	}
	f.parts = []*apiv1.ListResponse{
		{Columns: []string{"ID", "MTU"}, Rows: []*apiv1.ListRow{{Cells: []string{"2", "1500"}}}},
	}
	if out, _, err := runNoun("endpoint", "list", "-o", "wide", "--socket", socket); out != "ID   MTU\n2    1500\n" ||
		err != nil {
		t.Errorf("%q, %v", out, err)
	}
	if !f.asked.GetWide() || f.asked.GetJson() {
		t.Errorf("asked %v", f.asked)
	}
}
