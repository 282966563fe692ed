package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Objects writes and reads objects of any kind, as the server has them, for installers. It keeps nothing
// but which kinds there are.
type Objects struct {
	// Client is what it asks by.
	Client *Client

	mu    sync.Mutex
	kinds map[string][]metav1.APIResource // by group and version
}

// Ref names an object.
type Ref struct {
	APIVersion, Kind string
	Namespace, Name  string // Namespace counts where the kind has one
}

// String is "Kind namespace/name".
func (r Ref) String() string {
	if r.Namespace == "" {
		return r.Kind + " " + r.Name
	}
	return r.Kind + " " + r.Namespace + "/" + r.Name
}

// RefOf names the object that content is.
func RefOf(content map[string]any) Ref {
	text := func(m map[string]any, key string) string { s, _ := m[key].(string); return s }
	meta, _ := content["metadata"].(map[string]any)
	return Ref{APIVersion: text(content, "apiVersion"), Kind: text(content, "kind"), Namespace: text(meta, "namespace"),
		Name: text(meta, "name")}
}

// ErrNotFound says that there is no such object, or no such kind.
var ErrNotFound = errors.New("not found")

// Objects are those of the server.
func (s *Server) Objects() (*Objects, error) {
	c, err := s.Client()
	return &Objects{Client: c, kinds: map[string][]metav1.APIResource{}}, err
}

func (o *Objects) do(ctx context.Context, method, path, contentType string, query url.Values, body, into any) error {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	err := o.Client.do(ctx, method, path, contentType, body, into)
	if apierrors.IsNotFound(err) {
		return ErrNotFound
	}
	return err
}

// path asks the server once for what it calls a kind.
func (o *Objects) path(ctx context.Context, r Ref) (string, error) {
	root := "/apis/" + r.APIVersion
	if !strings.Contains(r.APIVersion, "/") {
		root = "/api/" + r.APIVersion
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.kinds[root] == nil {
		var list metav1.APIResourceList
		if err := o.do(ctx, http.MethodGet, root, "", nil, nil, &list); err != nil {
			return "", fmt.Errorf("kinds of %s: %w", r.APIVersion, err)
		}
		o.kinds[root] = list.APIResources
	}
	for _, k := range o.kinds[root] {
		switch {
		case k.Kind != r.Kind || strings.Contains(k.Name, "/"):
		case k.Namespaced:
			return root + "/namespaces/" + r.Namespace + "/" + k.Name, nil
		default:
			return root + "/" + k.Name, nil
		}
	}
	return "", fmt.Errorf("kind %s of %s: %w", r.Kind, r.APIVersion, ErrNotFound)
}

// Get reads an object into a Go value; ErrNotFound if there is none.
func (o *Objects) Get(ctx context.Context, r Ref, into any) error {
	path, err := o.path(ctx, r)
	if err == nil {
		err = o.do(ctx, http.MethodGet, path+"/"+r.Name, "", nil, nil, into)
	}
	if err != nil {
		return fmt.Errorf("get %s: %w", r, err)
	}
	return nil
}

// Find lists the objects of a kind that have a name, in all namespaces.
func (o *Objects) Find(ctx context.Context, apiVersion, kind, name string) ([]Ref, error) {
	path, err := o.path(ctx, Ref{APIVersion: apiVersion, Kind: kind})
	if err != nil {
		return nil, err
	}
	var list metav1.PartialObjectMetadataList
	query := url.Values{"fieldSelector": {"metadata.name=" + name}}
	if err := o.do(ctx, http.MethodGet, strings.Replace(path, "/namespaces//", "/", 1), "", query, nil,
		&list); err != nil {
		return nil, fmt.Errorf("find %s %s: %w", kind, name, err)
	}
	var refs []Ref
	for _, item := range list.Items {
		refs = append(refs, Ref{APIVersion: apiVersion, Kind: kind, Namespace: item.Namespace, Name: item.Name})
	}
	return refs, nil
}

// Change is what Apply has done.
type Change string

// What Apply does.
const (
	Created   Change = "created"
	Changed   Change = "changed"
	Unchanged Change = "unchanged"
)

// Apply writes an object by server-side apply: its fields become manager's, whoever had them.
func (o *Objects) Apply(ctx context.Context, content map[string]any, manager string) (Change, error) {
	r := RefOf(content)
	var before, after metav1.PartialObjectMetadata
	err := o.Get(ctx, r, &before)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return "", err
	}
	path, bad := o.path(ctx, r)
	if bad != nil {
		return "", fmt.Errorf("apply %s: %w", r, bad)
	}
	query := url.Values{"fieldManager": {manager}, "force": {"true"}, "fieldValidation": {"Strict"}}
	if err := o.do(ctx, http.MethodPatch, path+"/"+r.Name, "application/apply-patch+yaml", query, content,
		&after); err != nil {
		return "", fmt.Errorf("apply %s: %w", r, err)
	}
	switch {
	case err != nil:
		return Created, nil
	case before.ResourceVersion == after.ResourceVersion:
		return Unchanged, nil
	}
	return Changed, nil
}

// Delete asks for an object's end; ErrNotFound if there is none. With owned, what it owns goes first, as the cluster's
// controllers find time: an object that is gone then has no pods.
func (o *Objects) Delete(ctx context.Context, r Ref, owned bool) error {
	policy := metav1.DeletePropagationBackground
	if owned {
		policy = metav1.DeletePropagationForeground
	}
	body := metav1.DeleteOptions{TypeMeta: metav1.TypeMeta{Kind: "DeleteOptions", APIVersion: "v1"},
		PropagationPolicy: &policy}
	path, err := o.path(ctx, r)
	if err == nil {
		err = o.do(ctx, http.MethodDelete, path+"/"+r.Name, asJSON, nil, body, nil)
	}
	if err != nil {
		return fmt.Errorf("delete %s: %w", r, err)
	}
	return nil
}
