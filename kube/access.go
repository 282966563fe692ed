package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// Client reads and writes single objects of an API server, as JSON. It is safe for
// concurrent use.
type Client struct {
	clients *clients
	rest    *rest.RESTClient
}

// Client makes one.
func (s *Server) Client() (*Client, error) {
	c, err := s.clients()
	if err != nil {
		return nil, fmt.Errorf("talk to %s: %w", s.address(), err)
	}
	// Of the kinds it only has to know what a server says where something is wrong.
	r, err := c.of(schema.GroupVersionKind{Version: "v1", Kind: "Status"}, &metav1.Status{}, &rawList{}, asJSON)
	return &Client{clients: c, rest: r}, err
}

// Resource is a kind and where a server has it.
type Resource struct {
	schema.GroupVersionKind

	// Plural is the kind's name in paths.
	Plural string
	// Optional kinds come with a CustomResourceDefinition, which may be missing.
	Optional bool
}

// Path is where an object is, or where all are if name is empty; namespace is empty for kinds that
// have none.
func (r *Resource) Path(namespace, name string) string {
	at := "/apis/" + r.Group + "/" + r.Version
	if r.Group == "" {
		at = "/api/" + r.Version
	}
	if namespace != "" {
		at += "/namespaces/" + namespace
	}
	at += "/" + r.Plural
	if name != "" {
		at += "/" + name
	}
	return at
}

// Get reads what is at a path into a pointer; nil: nothing is read. Errors of the
// server can be classified by package apimachinery/pkg/api/errors.
func (c *Client) Get(ctx context.Context, path string, into any) error {
	return c.do(ctx, http.MethodGet, path, "", nil, into)
}

// Create makes an object in what is at a path, and reads what it became.
func (c *Client) Create(ctx context.Context, path string, object, into any) error {
	return c.do(ctx, http.MethodPost, path, asJSON, object, into)
}

// Put replaces an object, of the version that its metadata says, and reads what
// it became.
func (c *Client) Put(ctx context.Context, path string, object, into any) error {
	return c.do(ctx, http.MethodPut, path, asJSON, object, into)
}

// Merge changes what part has of an object, and reads what it became.
func (c *Client) Merge(ctx context.Context, path string, part, into any) error {
	return c.do(ctx, http.MethodPatch, path, "application/merge-patch+json", part, into)
}

// Delete deletes an object, if it is still that of uid; empty: whichever it is.
func (c *Client) Delete(ctx context.Context, path, uid string) error {
	options := map[string]any{"apiVersion": "v1", "kind": "DeleteOptions"}
	if uid != "" {
		options["preconditions"] = map[string]any{"uid": uid}
	}
	return c.do(ctx, http.MethodDelete, path, asJSON, options, nil)
}

func (c *Client) do(ctx context.Context, verb, path, kind string, body, into any) error {
	r := c.rest.Verb(verb).RequestURI(path)
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
		r = r.SetHeader("Content-Type", kind).Body(text)
	}
	text, err := r.Do(ctx).Raw()
	if err != nil {
		return fmt.Errorf("%s %s: %w", strings.ToLower(verb), path, err)
	}
	if into == nil {
		return nil
	}
	if raw, ok := into.(*[]byte); ok {
		*raw = text
		return nil
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("read the answer of %s: %w", path, err)
	}
	return nil
}
