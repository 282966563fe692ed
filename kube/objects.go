package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// Objects writes and reads objects of any kind, as the server has them, for who installs something. It keeps nothing but which kinds there are.
type Objects struct {
	http *http.Client
	base *url.URL

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
	return Ref{APIVersion: text(content, "apiVersion"), Kind: text(content, "kind"), Namespace: text(meta, "namespace"), Name: text(meta, "name")}
}

// ErrNotFound says that there is no such object, or no such kind.
var ErrNotFound = errors.New("not found")

// Objects are those of the server.
func (s *Server) Objects() (*Objects, error) {
	h, err := rest.HTTPClientFor(s.config)
	if err != nil {
		return nil, err
	}
	base, _, err := rest.DefaultServerUrlFor(s.config)
	if err != nil {
		return nil, err
	}
	return &Objects{http: h, base: base, kinds: map[string][]metav1.APIResource{}}, nil
}

// maxObject bounds an answer, in bytes.
const maxObject = 16 << 20

func (o *Objects) do(ctx context.Context, method, path, contentType string, query url.Values, body []byte, into any) error {
	u := *o.base
	u.Path, u.RawQuery = strings.TrimSuffix(u.Path, "/")+path, query.Encode()
	req, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Accept", asJSON)
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	answer, err := o.http.Do(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(io.LimitReader(answer.Body, maxObject))
	switch {
	case err != nil:
		return err
	case answer.StatusCode == http.StatusNotFound:
		return ErrNotFound
	case answer.StatusCode >= http.StatusBadRequest:
		var status metav1.Status
		if json.Unmarshal(data, &status) != nil || status.Message == "" {
			return errors.New(answer.Status)
		}
		return errors.New(status.Message)
	case into == nil:
		return nil
	}
	return json.Unmarshal(data, into)
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
	if err := o.do(ctx, http.MethodGet, strings.Replace(path, "/namespaces//", "/", 1), "", query, nil, &list); err != nil {
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
	body, bad := json.Marshal(content)
	path, worse := o.path(ctx, r)
	if err := errors.Join(bad, worse); err != nil {
		return "", fmt.Errorf("apply %s: %w", r, err)
	}
	query := url.Values{"fieldManager": {manager}, "force": {"true"}, "fieldValidation": {"Strict"}}
	if err := o.do(ctx, http.MethodPatch, path+"/"+r.Name, "application/apply-patch+yaml", query, body, &after); err != nil {
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

// Delete asks for an object's end; ErrNotFound if there is none. With owned, what it owns goes first, as the cluster's controllers find time: an
// object that is gone then has no pods.
func (o *Objects) Delete(ctx context.Context, r Ref, owned bool) error {
	policy := metav1.DeletePropagationBackground
	if owned {
		policy = metav1.DeletePropagationForeground
	}
	body, err := json.Marshal(metav1.DeleteOptions{TypeMeta: metav1.TypeMeta{Kind: "DeleteOptions", APIVersion: "v1"}, PropagationPolicy: &policy})
	if err != nil {
		return err
	}
	path, err := o.path(ctx, r)
	if err == nil {
		err = o.do(ctx, http.MethodDelete, path+"/"+r.Name, asJSON, nil, body, nil)
	}
	if err != nil {
		return fmt.Errorf("delete %s: %w", r, err)
	}
	return nil
}
