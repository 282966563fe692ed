package kube

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cilium/statedb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"myelin/cluster"
	"myelin/policy"
)

// TestNodeKeys: a node's row has the key of its CiliumNode, or else of its Node, whichever of the two comes first or
// goes; podCIDRs are the Node's.
func TestNodeKeys(t *testing.T) {
	db := statedb.New()
	tables, err := cluster.NewTables(db)
	if err != nil {
		t.Fatal(err)
	}
	policies, err := policy.NewTables(db)
	if err != nil {
		t.Fatal(err)
	}
	byKind := map[string]*kind{}
	for _, k := range withPool(kinds(tables, policies, nil), tables, false) {
		byKind[k.Kind] = k
	}
	change := func(of string, do func(k *kind, txn statedb.WriteTxn)) string {
		txn := db.WriteTxn(tables.Nodes)
		do(byKind[of], txn)
		txn.Commit()
		row, _, ok := tables.Nodes.Get(db.ReadTxn(), cluster.NodeByName("n1"))
		if !ok {
			return "no row"
		}
		if row.WireGuardKey != "" && row.IPsec.Epoch != strings.Repeat(row.WireGuardKey[:1], 32) {
			t.Errorf("key %s, IPsec %s", row.WireGuardKey, row.IPsec)
		}
		return fmt.Sprintf("%s %v", strings.TrimSuffix(row.WireGuardKey, "A="), row.PodCIDRs)
	}
	put := func(of string, o runtime.Object) string {
		return change(of, func(k *kind, txn statedb.WriteTxn) {
			i, err := k.item(o, time.Unix(1, 0))
			if err != nil || len(i.faults) > 0 {
				t.Fatalf("%s: %v, %v", of, err, i.faults)
			}
			k.rows.put(txn, k.rows.known(txn, i.row))
		})
	}
	remove := func(of string) string {
		return change(of, func(k *kind, txn statedb.WriteTxn) { k.rows.remove(txn, cluster.Key{Name: "n1"}) })
	}
	b, c, d := strings.Repeat("b", 42), strings.Repeat("c", 42), strings.Repeat("d", 42)
	for i, step := range []struct{ got, want string }{
		{put("CiliumNode", keyCiliumNode(t, "b")), "no row"},
		{put("Node", keyNode(nil)), b + " [10.0.1.0/24]"},
		{put("CiliumNode", keyCiliumNode(t, "c")), c + " [10.0.1.0/24]"},
		{put("Node", keyNode(keyAnnotation("d"))), c + " [10.0.1.0/24]"},
		{remove("CiliumNode"), d + " [10.0.1.0/24]"},
		{put("Node", keyNode(nil)), " [10.0.1.0/24]"},
		{remove("Node"), "no row"},
	} {
		if step.got != step.want {
			t.Errorf("step %d: got %q, want %q", i, step.got, step.want)
		}
	}
}

func keyAnnotation(c string) map[string]string {
	return map[string]string{cluster.WireGuardAnnotation: strings.Repeat(c, 42) + "A=",
		cluster.IPsecAnnotation: strings.Repeat(c, 32) + " 3"}
}

func keyNode(annotations map[string]string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: annotations},
		Spec: corev1.NodeSpec{PodCIDR: "10.0.1.0/24"}}
}

func keyCiliumNode(t *testing.T, c string) *raw {
	t.Helper()
	o := &raw{}
	annotations, err := json.Marshal(keyAnnotation(c))
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(`{"metadata": {"name": "n1", "annotations": %s}, "spec": {"ipam": {"podCIDRs": `+
		`["10.9.0.0/24"]}}}`, annotations)
	if err := o.UnmarshalJSON([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return o
}
