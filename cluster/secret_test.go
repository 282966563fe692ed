package cluster

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestFromSecret: stringData overrides data, and no output of a row has either.
func TestFromSecret(t *testing.T) {
	t.Parallel()
	object := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Data: map[string][]byte{
		"a": []byte("hidden"), "b": []byte("hidden")}, StringData: map[string]string{"a": "hidden too"}}
	row, err := FromSecret(object, "test")
	if err != nil {
		t.Fatal(err)
	}
	if row.Key() != (Key{Namespace: "default", Name: "s"}) || string(row.Data["a"]) != "hidden too" ||
		string(row.Data["b"]) != "hidden" {
		t.Errorf("row %+v", row)
	}
	if string(object.Data["a"]) != "hidden" {
		t.Error("the object was changed")
	}
	text, err := json.Marshal(row)
	if all := string(text) + strings.Join(row.TableRow(), " "); err != nil || strings.Contains(all, "hidden") ||
		strings.Contains(all, "aGlkZGVu") || !strings.Contains(all, "a b") {
		t.Errorf("%s, %v", all, err)
	}
	other, err := FromSecret(&corev1.Secret{ObjectMeta: object.ObjectMeta, Data: map[string][]byte{
		"a": []byte("hidden too"), "b": []byte("hidden?")}}, "test")
	if err != nil || row.Equal(other) || !row.Equal(row) {
		t.Errorf("%v: rows with other data are equal, or a row is not equal to itself", err)
	}
	for name, bad := range map[string]*corev1.Secret{
		"metadata.name":      {ObjectMeta: metav1.ObjectMeta{Name: "A"}},
		"metadata.namespace": {ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "a.b"}},
	} {
		if _, err := FromSecret(bad, "test"); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
