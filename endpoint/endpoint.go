// Package endpoint keeps the node's pods as the datapath knows them: the table
// of endpoints, and the Manager that makes, restores and removes a pod's
// interface.
package endpoint

import (
	"cmp"
	"encoding/json"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/cilium/statedb/reconciler"

	"myelin/endpoint/podlink"
)

// Bounds of endpoint IDs ("slots"). 0 means "no endpoint" in every map, 1 is
// the host, and the datapath's per-endpoint arrays end at 65535.
const (
	HostID = 1
	MinID  = 2
	MaxID  = 65535
)

// States of an endpoint.
const (
	// StateCreating: the row is complete and waits for the reconciler; the CNI
	// ADD has not answered yet.
	StateCreating = "creating"
	// StateReady: the CNI ADD has succeeded.
	StateReady = "ready"
	// StateDeleting: the endpoint must vanish from the kernel. The reconciler
	// removes everything it holds for the row in its Update, and sets Done; only
	// then the Manager deletes the link and the row and releases the addresses.
	StateDeleting = "deleting"
)

// Endpoint is one interface of one pod. Rows are immutable after insertion.
type Endpoint struct {
	// ID is the slot in the datapath's arrays, MinID..MaxID, unique on the node.
	ID uint16 `json:"id"`

	// ContainerID and IfName identify the attachment (CNI specification 1.1.0).
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
	// NetNS is the path of the pod's network namespace; it may be stale.
	NetNS string `json:"netns"`
	// NetnsCookie is the kernel's number for it; 0: not known.
	NetnsCookie uint64 `json:"netnsCookie,omitempty"`

	// Namespace, Pod and PodUID come from CNI_ARGS and are empty for a container
	// that is not a Kubernetes pod.
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	PodUID    string `json:"podUID,omitempty"`

	// Kind is that of the pod link; empty is Veth.
	Kind podlink.Kind `json:"kind,omitempty"`
	// LinkName, LinkIndex and LinkMAC are those of the host side of the pod link.
	LinkName  string           `json:"linkName"`
	LinkIndex int              `json:"linkIndex"`
	LinkMAC   net.HardwareAddr `json:"linkMAC"`
	// PodMAC is the address of the interface in the pod.
	PodMAC net.HardwareAddr `json:"podMAC"`

	// IPv4 and IPv6 are the pod's addresses, invalid for a family that is off.
	IPv4 netip.Addr `json:"ipv4"`
	IPv6 netip.Addr `json:"ipv6"`

	// MTU of the pod link, bytes of layer 3: the largest packet that reaches the
	// pod.
	MTU int `json:"mtu"`
	// RouteMTU is that of the pod's default routes: the largest packet that the
	// pod sends. 0 means MTU, as it was for pods made before there were two.
	RouteMTU int `json:"routeMTU,omitempty"`

	// Interim is set while programs hang on the link by filters and their lasting
	// links are due. It is found anew after a restart.
	Interim bool `json:"-"`

	State     string    `json:"state"`
	CreatedAt time.Time `json:"createdAt"`

	// Status says whether the kernel is equal to the row.
	Status reconciler.Status `json:"status"`
}

// Clone returns a copy that may be changed and inserted in place of e.
func (e *Endpoint) Clone() *Endpoint {
	c := *e
	return &c
}

// Deleting reports whether the reconciler must remove the endpoint from the
// kernel instead of writing it.
func (e *Endpoint) Deleting() bool { return e.State == StateDeleting }

// Guarded reports whether the datapath stands before the pod, so that its routes
// may lead there: until then the kernel's stack would bring it packets that
// no policy has been applied to.
func (e *Endpoint) Guarded() bool {
	return e.State == StateReady || e.State == StateCreating && e.Status.Kind == reconciler.StatusKindDone
}

// Addresses returns the valid addresses of the pod, IPv4 first.
func (e *Endpoint) Addresses() []netip.Addr {
	addrs := make([]netip.Addr, 0, 2)
	for _, a := range []netip.Addr{e.IPv4, e.IPv6} {
		if a.IsValid() {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// PodName returns "namespace/name", or the container ID when the container is
// not a Kubernetes pod.
func (e *Endpoint) PodName() string {
	if e.Pod == "" {
		return e.ContainerID
	}
	return e.Namespace + "/" + e.Pod
}

// StatusOf returns where the row keeps its reconciliation status, as
// table.Register asks for.
func StatusOf(e *Endpoint) *reconciler.Status { return &e.Status }

// TableHeader implements statedb.TableWritable.
func (e *Endpoint) TableHeader() []string {
	return []string{"ID", "Pod", "IPv4", "IPv6", "Link", "Index", "MAC", "State", "Status"}
}

// TableRow implements statedb.TableWritable.
func (e *Endpoint) TableRow() []string {
	text := func(a netip.Addr) string {
		if !a.IsValid() {
			return "-"
		}
		return a.String()
	}
	return []string{
		strconv.Itoa(int(e.ID)), e.PodName(), text(e.IPv4), text(e.IPv6),
		e.LinkName, strconv.Itoa(e.LinkIndex), e.PodMAC.String(), e.State, e.Status.Kind.String(),
	}
}

// WideHeader names the columns of WideRow.
func (e *Endpoint) WideHeader() []string {
	return []string{"Link index", "Link kind", "Link MAC", "MTU", "Interface", "Network namespace",
		"Container", "Created"}
}

// WideRow has what -o wide shows beside TableRow.
func (e *Endpoint) WideRow() []string {
	return []string{
		strconv.Itoa(e.LinkIndex), string(cmp.Or(e.Kind, podlink.Veth)), e.LinkMAC.String(), strconv.Itoa(e.MTU),
		e.IfName, e.NetNS, e.ContainerID, e.CreatedAt.UTC().Format(time.RFC3339),
	}
}

// jsonEndpoint replaces the MACs, which encoding/json would write as base64,
// by their usual text.
type jsonEndpoint struct {
	*plainEndpoint
	LinkMAC string `json:"linkMAC"`
	PodMAC  string `json:"podMAC"`
}

type plainEndpoint Endpoint

// MarshalJSON writes MACs as colon-separated hexadecimal.
func (e *Endpoint) MarshalJSON() ([]byte, error) {
	return json.Marshal(jsonEndpoint{(*plainEndpoint)(e), e.LinkMAC.String(), e.PodMAC.String()})
}

// UnmarshalJSON is the inverse of MarshalJSON. An empty MAC is none.
func (e *Endpoint) UnmarshalJSON(data []byte) error {
	row := jsonEndpoint{plainEndpoint: (*plainEndpoint)(e)}
	if err := json.Unmarshal(data, &row); err != nil {
		return err
	}
	var err error
	if e.LinkMAC, err = parseMAC(row.LinkMAC); err != nil {
		return err
	}
	e.PodMAC, err = parseMAC(row.PodMAC)
	return err
}

func parseMAC(s string) (net.HardwareAddr, error) {
	if s == "" {
		return nil, nil
	}
	return net.ParseMAC(s)
}
