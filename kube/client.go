package kube

import (
	"context"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// clients ask for kinds. They share connections, and know no kinds but ours:
// client-go's own set of clients would bring all that Kubernetes has into the
// program.
type clients struct {
	config *rest.Config
	http   *http.Client
}

func (s *Server) clients() (*clients, error) {
	h, err := rest.HTTPClientFor(s.config)
	if err != nil {
		return nil, err
	}
	return &clients{config: s.config, http: h}, nil
}

const (
	protobuf = "application/vnd.kubernetes.protobuf"
	asJSON   = "application/json"
)

// of makes the client of one kind.
func (c *clients) of(gvk schema.GroupVersionKind, object, list runtime.Object,
	accept string) (*rest.RESTClient, error) {
	scheme := runtime.NewScheme()
	gv := gvk.GroupVersion()
	metav1.AddToGroupVersion(scheme, gv)
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		return nil, fmt.Errorf("make the client of %s: %w", gvk.Kind, err)
	}
	scheme.AddKnownTypeWithName(gvk, object)
	scheme.AddKnownTypeWithName(gv.WithKind(gvk.Kind+"List"), list)
	config := rest.CopyConfig(c.config)
	config.GroupVersion, config.APIPath = &gv, "/apis"
	if gv == corev1.SchemeGroupVersion {
		config.APIPath = "/api"
	}
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.ContentType, config.AcceptContentTypes = asJSON, accept
	client, err := rest.RESTClientForConfigAndClient(config, c.http)
	if err != nil {
		return nil, fmt.Errorf("make the client of %s: %w", gvk.Kind, err)
	}
	return client, nil
}

// listWatch lists and watches one kind, in all namespaces or the one of the kind, and makes items of what it gets.
type listWatch struct {
	*kind

	client *rest.RESTClient
	now    func() time.Time
	// consistent lists are what the server has now, not what its cache had: a caller that
	// writes must know what others wrote.
	consistent bool
	// listed and watched are what the server is to answer with, if not objects.
	listed, watched string
}

func (c *clients) listWatch(k *kind, now func() time.Time) (*listWatch, error) {
	accept := asJSON
	if _, ok := k.object.(*raw); !ok {
		accept = protobuf + "," + asJSON
	}
	client, err := c.of(k.GroupVersionKind, k.object, k.list, accept)
	return &listWatch{kind: k, client: client, now: now}, err
}

func (l *listWatch) request(o metav1.ListOptions) *rest.Request {
	return l.client.Get().NamespaceIfScoped(l.namespace, l.namespace != "").Resource(l.resource).
		VersionedParams(&o, metav1.ParameterCodec)
}

// List implements cache.Lister.
func (l *listWatch) List(o metav1.ListOptions) (runtime.Object, error) {
	return l.ListWithContext(context.Background(), o)
}

// Watch implements cache.Watcher.
func (l *listWatch) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return l.WatchWithContext(context.Background(), o)
}

// ListWithContext implements cache.ListerWithContext.
func (l *listWatch) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	if l.consistent && o.ResourceVersion == "0" {
		o.ResourceVersion = ""
	}
	list, err := accept(l.request(o), l.listed).Do(ctx).Get()
	if err != nil {
		return nil, err
	}
	return l.items(list, l.now())
}

// WatchWithContext implements cache.WatcherWithContext.
func (l *listWatch) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	events, err := accept(l.request(o), l.watched).Watch(ctx)
	if err != nil {
		return nil, err
	}
	return watch.Filter(events, func(e watch.Event) (watch.Event, bool) {
		if e.Type != watch.Added && e.Type != watch.Modified && e.Type != watch.Deleted {
			return e, true
		}
		i, err := l.item(e.Object, l.now())
		if err != nil { // it has no name: nothing can be said of it
			return e, false
		}
		e.Object = i
		return e, true
	}), nil
}

// definitions are the CustomResourceDefinitions' names alone.
func (c *clients) definitions() (*listWatch, error) {
	k := &kind{
		GroupVersionKind: schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1",
			Kind: "CustomResourceDefinition"},
		resource: "customresourcedefinitions", object: &metav1.PartialObjectMetadata{},
		list: &metav1.PartialObjectMetadataList{},
	}
	k.convert = noRow
	client, err := c.of(k.GroupVersionKind, k.object, k.list, asJSON)
	const as, of = asJSON + ";as=PartialObjectMetadata", ";g=meta.k8s.io;v=v1"
	return &listWatch{kind: k, client: client, now: time.Now, listed: as + "List" + of, watched: as + of}, err
}

// accept asks for a form of answer; empty: the client's own.
func accept(r *rest.Request, form string) *rest.Request {
	if form == "" {
		return r
	}
	return r.SetHeader("Accept", form)
}
