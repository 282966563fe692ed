package ciliumv2_test

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"myelin/cluster"
	"myelin/policy/ciliumv2"
)

// read decodes a file of testdata, strictly.
func read(t *testing.T, file string, into any) []byte {
	t.Helper()
	text, err := os.ReadFile("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range cluster.Decode(raw, into) {
		t.Errorf("%s: %v", file, e)
	}
	return raw
}

// TestEveryField decodes objects that have every field of the API, encodes them
// again, and compares: a field that is misspelt in a type would be lost.
func TestEveryField(t *testing.T) {
	for file, object := range map[string]any{
		"policy.yaml":      &ciliumv2.CiliumNetworkPolicy{},
		"clusterwide.yaml": &ciliumv2.CiliumClusterwideNetworkPolicy{},
		"group.yaml":       &ciliumv2.CiliumCIDRGroup{},
	} {
		raw := read(t, file, object)
		again, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		var want, got map[string]any
		if err := json.Unmarshal(raw, &want); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(again, &got); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s became\n%s", file, again)
		}
		for _, name := range unset(reflect.ValueOf(object).Elem().FieldByName("Spec"), "spec") {
			if file == "policy.yaml" && name != "spec.nodeSelector" {
				t.Errorf("%s has no %s: the test does not see it", file, name)
			}
		}
	}
}

// unset names the fields of API types that have no value anywhere in lists.
func unset(v reflect.Value, at string) []string {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return []string{at}
		}
		if v.Elem().Kind() == reflect.Bool {
			return nil
		}
		return unset(v.Elem(), at)
	case reflect.Slice:
		if v.Len() == 0 {
			return []string{at}
		}
		missing := unset(v.Index(0), at)
		for i := 1; i < v.Len(); i++ {
			missing = both(missing, unset(v.Index(i), at))
		}
		return missing
	case reflect.Struct:
		if !strings.HasSuffix(v.Type().PkgPath(), "ciliumv2") {
			return nil
		}
		var missing []string
		for i := range v.NumField() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			if name == "" {
				missing = append(missing, unset(v.Field(i), at)...)
				continue
			}
			missing = append(missing, unset(v.Field(i), at+"."+name)...)
		}
		return missing
	}
	if v.IsZero() {
		return []string{at}
	}
	return nil
}

// both is what a and b have in common.
func both(a, b []string) []string {
	has := map[string]bool{}
	for _, s := range b {
		has[s] = true
	}
	var out []string
	for _, s := range a {
		if has[s] {
			out = append(out, s)
		}
	}
	return out
}

func TestStrict(t *testing.T) {
	for _, c := range []struct{ object, want string }{
		{`{"spec":{"ingres":[]}}`, `spec.ingres: unknown field`},
		{`{"spec":{"ingress":[{"toPorts":[{"ports":[{"prt":"80"}]}]}]}}`,
			`spec.ingress[0].toPorts[0].ports[0].prt: unknown field`},
		{`{"specs":[{},{"egressDeny":[{"toFQDNs":[]}]}]}`, `specs[1].egressDeny[0].toFQDNs: unknown field`},
		{`{"spec":{"ingress":[{"FromEndpoints":[]}]}}`, `spec.ingress[0].FromEndpoints: unknown field`},
		{`{"spec":{"ingress":[{"fromEndpoints":[null]}]}}`, `spec.ingress[0].fromEndpoints[0]: is null`},
		{`{"spec":{"ingress":[null]},"specs":[null]}`, `spec.ingress[0]: is null; specs[0]: is null`},
		{`{"spec":{"egress":[{"toPorts":[{"ports":[{"port":80}]}]}]}}`,
			`spec.egress[0].toPorts[0].ports[0].port: a number can't be a string`},
		{`{"spec":{"egress":[{},{"toCIDR":["a"],"toServices":[{},{"k8sService":["b"]}]}]}}`,
			`spec.egress[1].toServices[1].k8sService: an array can't be an object`},
		{`{"spec":{"egress":{}}}`, `spec.egress: an object can't be a list`},
		{`[]`, `: is an array, not an object`},
	} {
		got := cluster.Decode([]byte(c.object), &ciliumv2.CiliumNetworkPolicy{})
		if got.Error() != c.want {
			t.Errorf("%s\n got %q\nwant %q", c.object, got.Error(), c.want)
		}
	}
}
