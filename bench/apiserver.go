package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// apiServer serves what a kube-proxy asks an API server for: Services, EndpointSlices and its Node, which stay as they
// are. A list is followed by a watch that says nothing. All else is not found.
type apiServer struct {
	lists map[string][]byte // by resource
}

// listVersion is the resource version of every list.
const listVersion = "1"

func newAPIServer(node *corev1.Node, o *objects) (*apiServer, error) {
	s := &apiServer{lists: map[string][]byte{}}
	meta := metav1.ListMeta{ResourceVersion: listVersion}
	kind := func(name, version string) metav1.TypeMeta { return metav1.TypeMeta{Kind: name, APIVersion: version} }
	services, slices := corev1.ServiceList{TypeMeta: kind("ServiceList", "v1"), ListMeta: meta},
		discoveryv1.EndpointSliceList{TypeMeta: kind("EndpointSliceList", "discovery.k8s.io/v1"), ListMeta: meta}
	for _, svc := range o.services {
		services.Items = append(services.Items, *svc)
	}
	for _, part := range o.slices {
		slices.Items = append(slices.Items, *part)
	}
	for resource, list := range map[string]any{
		"services": services, "endpointslices": slices,
		"nodes": corev1.NodeList{TypeMeta: kind("NodeList", "v1"), ListMeta: meta, Items: []corev1.Node{*node}},
		"servicecidrs": networkingv1.ServiceCIDRList{TypeMeta: kind("ServiceCIDRList", "networking.k8s.io/v1"),
			ListMeta: meta},
		"node": node,
	} {
		text, err := json.Marshal(list)
		if err != nil {
			return nil, err
		}
		s.lists[resource] = text
	}
	return s, nil
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	resource := parts[len(parts)-1]
	if len(parts) > 1 && parts[len(parts)-2] == "nodes" {
		resource = "node"
	}
	text, ok := s.lists[resource]
	w.Header().Set("Content-Type", "application/json")
	query := r.URL.Query()
	switch {
	case !ok || r.Method != http.MethodGet:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	case query.Get("sendInitialEvents") == "true": // a way to list that clients fall back from
		refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	case query.Get("watch") == "true" || query.Get("watch") == "1":
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	default:
		_, _ = w.Write(text) // the client may be gone
	}
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: reason,
		Code: int32(code),
	})
}

// serve listens on loopback of a namespace, and returns where.
func (s *apiServer) serve(netns string) (url string, stop func(), err error) {
	var listener net.Listener
	err = inNetns(netns, func() (err error) {
		listener, err = net.Listen("tcp4", "127.0.0.1:0")
		return err
	})
	if err != nil {
		return "", nil, fmt.Errorf("serve the API in %s: %w", netns, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	server := &http.Server{Handler: s, ReadHeaderTimeout: time.Minute, BaseContext: func(net.Listener) context.Context {
		return ctx
	}}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	return "http://" + listener.Addr().String(), func() {
		cancel()
		if err := errors.Join(server.Close(), <-ended); err != nil && !errors.Is(err, http.ErrServerClosed) {
			panic(err) // a listener on loopback doesn't end by itself
		}
	}, nil
}
