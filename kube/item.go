package kube

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"myelin/cluster"
)

// item is as much of an object as is kept of it: its name, and the row that was
// made of it, or what is wrong with it. The object itself is never kept.
type item struct {
	metav1.TypeMeta
	metav1.ObjectMeta // of which only name, namespace, version and generation are set

	// row is of a closed version where there are faults; nil where there is none.
	row    any
	faults cluster.FieldErrors
	// version is that of a policy's rules, as crd.Revision has it; 0: of none.
	version uint64
}

// DeepCopyObject implements runtime.Object. Rows are immutable.
func (i *item) DeepCopyObject() runtime.Object {
	c := *i
	return &c
}

func (i *item) key() cluster.Key { return cluster.Key{Namespace: i.Namespace, Name: i.Name} }

// itemList is a list of the server's, made into items.
type itemList struct {
	metav1.TypeMeta
	metav1.ListMeta

	Items []item
}

// DeepCopyObject implements runtime.Object.
func (l *itemList) DeepCopyObject() runtime.Object {
	c := *l
	return &c
}

// raw is an object of which the text is read later, strictly.
type raw struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	text []byte
}

// DeepCopyObject implements runtime.Object.
func (r *raw) DeepCopyObject() runtime.Object {
	c := *r
	return &c
}

// UnmarshalJSON implements json.Unmarshaler. It reads what names the object, and
// keeps the rest as it is.
func (r *raw) UnmarshalJSON(text []byte) error {
	var head rawHead
	if err := head.read(text); err != nil {
		return err
	}
	m := head.Metadata
	r.ObjectMeta = metav1.ObjectMeta{
		Name: m.Name, Namespace: m.Namespace, ResourceVersion: m.ResourceVersion, Generation: m.Generation,
		Annotations: m.Annotations,
	}
	r.text = append([]byte(nil), text...)
	return nil
}

// rawHead is as much of an object's text as names it.
type rawHead struct {
	Metadata struct {
		Name            string `json:"name"`
		Namespace       string `json:"namespace"`
		ResourceVersion string `json:"resourceVersion"`
		Generation      int64  `json:"generation"`
		// Annotations are what bookmarks say something by.
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
}

func (h *rawHead) read(text []byte) error { return json.Unmarshal(text, h) }

// rawList is a list of those.
type rawList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []raw `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *rawList) DeepCopyObject() runtime.Object {
	c := *l
	return &c
}
