package crd_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
	"sigs.k8s.io/yaml"

	"myelin/cluster"
	"myelin/kube/crd"
	"myelin/policy/parse"
	"myelin/test/kube/apiserver"
)

const asJSON = "application/json"

// TestServer: a real server accepts the definitions and stores all valid
// policies of the tree unchanged. Invalid ones that it accepts are stored
// unchanged too, so that their reader finds the error.
func TestServer(t *testing.T) {
	s := apiserver.Start(t)
	install(t, s)
	t.Run("Policies", func(t *testing.T) { testPolicies(t, s) })
	t.Run("Refused", func(t *testing.T) { testRefused(t, s) })
	t.Run("Versions", func(t *testing.T) { testVersions(t, s) })
}

// install waits until the kinds are served.
func install(t *testing.T, s *apiserver.Server) {
	t.Helper()
	objects, err := crd.Objects()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		name := o["metadata"].(map[string]any)["name"].(string)
		if code, body := s.Try(http.MethodPost,
			"/apis/apiextensions.k8s.io/v1/customresourcedefinitions?fieldValidation=Strict", asJSON,
			text); code >= 300 {
			t.Errorf("%s: %d %s", name, code, body)
			continue
		}
		plural, _, _ := strings.Cut(name, ".")
		deadline := time.Now().Add(30 * time.Second)
		for code := 0; code != http.StatusOK; time.Sleep(50 * time.Millisecond) {
			if code, _ = s.Try(http.MethodGet, "/apis/cilium.io/v2/"+plural, "",
				nil); code != http.StatusOK && time.Now().After(deadline) {
				t.Fatalf("%s is not served: %d", name, code)
			}
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}

// policy is one of the tree's.
type policy struct {
	file   string
	object map[string]any
	raw    []byte
	faults cluster.FieldErrors // found by the reader
}

func (p *policy) kind() string { return fmt.Sprint(p.object["kind"]) }

// path is where its kind is created.
func (p *policy) path() string {
	plural := map[string]string{
		"CiliumNetworkPolicy":            "namespaces/default/ciliumnetworkpolicies",
		"CiliumClusterwideNetworkPolicy": "ciliumclusterwidenetworkpolicies",
		"CiliumCIDRGroup":                "ciliumcidrgroups", "CiliumLoadBalancerIPPool": "ciliumloadbalancerippools",
	}[p.kind()]
	return "/apis/" + fmt.Sprint(p.object["apiVersion"]) + "/" + plural
}

// read says what is wrong with a policy.
func read(kind string, raw []byte) cluster.FieldErrors {
	if kind == parse.GroupKind {
		_, faults := parse.ReadGroup(raw, parse.Origin{})
		return faults
	}
	_, faults := parse.Readers()["cilium.io/v2/"+kind](raw, parse.Origin{})
	return faults
}

// policies are all of Cilium's kinds in YAML below the tree's root, each with a name of its
// own.
func policies(t *testing.T) (all []*policy) {
	t.Helper()
	add := func(file string, text []byte) {
		for _, doc := range bytes.Split(append([]byte("\n"), text...), []byte("\n---")) {
			p := &policy{file: file}
			if yaml.Unmarshal(doc, &p.object) != nil || p.object["apiVersion"] != "cilium.io/v2" {
				continue
			}
			meta, ok := p.object["metadata"].(map[string]any)
			if !ok || p.object["kind"] != "CiliumNetworkPolicy" &&
				p.object["kind"] != "CiliumClusterwideNetworkPolicy" && p.object["kind"] != parse.GroupKind {
				continue
			}
			meta["name"] = fmt.Sprintf("p%d", len(all))
			delete(meta, "namespace")
			if p.object["kind"] == "CiliumNetworkPolicy" {
				meta["namespace"] = "default"
			}
			delete(p.object, "status")
			var err error
			if p.raw, err = json.Marshal(p.object); err != nil {
				t.Fatal(err)
			}
			p.faults = read(p.kind(), p.raw)
			all = append(all, p)
		}
	}
	err := filepath.WalkDir(filepath.Join("..", ".."), func(name string, d fs.DirEntry, err error) error {
		ext := filepath.Ext(name)
		if err != nil || d.IsDir() || ext != ".yaml" && ext != ".txtar" {
			return err
		}
		text, err := os.ReadFile(name)
		if err != nil || ext == ".yaml" {
			add(name, text)
			return err
		}
		for _, f := range txtar.Parse(text).Files {
			add(name+" "+f.Name, f.Data)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func testPolicies(t *testing.T, s *apiserver.Server) {
	count := map[string]int{}
	for _, p := range policies(t) {
		code, body := s.Try(http.MethodPost, p.path()+"?fieldValidation=Strict", asJSON, p.raw)
		if code >= 300 {
			count["refused"]++
			if len(p.faults) == 0 {
				t.Errorf("%s: a valid %s is refused: %d %s\n%s", p.file, p.kind(), code, body, p.raw)
			}
			continue
		}
		var stored map[string]any
		if err := json.Unmarshal(body, &stored); err != nil {
			t.Fatal(err)
		}
		for _, part := range []string{"spec", "specs"} {
			if !reflect.DeepEqual(stored[part], p.object[part]) {
				t.Errorf("%s: %s is stored as\n%v\nnot as\n%v", p.file, part, stored[part], p.object[part])
			}
		}
		faults := read(p.kind(), body)
		if (len(faults) > 0) != (len(p.faults) > 0) {
			t.Errorf("%s: as it is stored it is found to have %v, before %v", p.file, faults, p.faults)
		}
		if len(faults) > 0 {
			count["marked"]++
			t.Logf("stored and then marked: %s: %v", p.file, faults[0])
		} else {
			count["valid"]++
		}
	}
	t.Logf("measured: %d valid stored, %d invalid refused by the server, %d invalid stored and marked", count["valid"],
		count["refused"], count["marked"])
	if count["valid"] < 50 || count["refused"] < 8 {
		t.Error("the tree has more than that")
	}
}
