package maps

import (
	"fmt"
	"net/netip"
	"testing"

	"myelin/bpf"
	"myelin/bpf/bpftest"
	"myelin/cluster/clustertest"
	"myelin/service"
	"myelin/service/servicetest"
)

// ownPortsSet is what the datapath reads.
func (r *rig) ownPortsSet(t testing.TB) bool {
	t.Helper()
	var n uint32
	if err := r.datapath.OwnPorts.Get(&n); err != nil {
		t.Fatal(err)
	}
	return n != 0
}

// The datapath looks at all ports of the node's own addresses only where a
// Service has one that is no node port.
func TestOwnPorts(t *testing.T) {
	const svc = `kind: Service
metadata: {name: web}
spec: {type: NodePort, clusterIP: @vip1, externalIPs: [@ext1], ports: [{port: %d, nodePort: 30080}]}
`
	const pod = `kind: Pod
metadata: {name: a}
spec: {nodeName: n1, containers: [{name: c, ports: [{containerPort: 80, hostPort: %s}]}]}
status: {podIPs: [{ip: @pod1}]}
`
	for _, tc := range []struct {
		name, objects, own string
		unknown, want      bool // before and after the node's own addresses are known
	}{
		{"an external address that is not its own", fmt.Sprintf(svc, 80), "@node1", true, false},
		{"one that is", fmt.Sprintf(svc, 80), "@ext1", true, true},
		{"with the port of a node port", fmt.Sprintf(svc, 30000), "@ext1", false, false},
		{"a ClusterIP that is its own, for the inside", fmt.Sprintf(svc, 30000), "@vip1", false, false},
		{"a host port", fmt.Sprintf(pod, "8080"), "@node1", true, true},
		{"a host port on one address", fmt.Sprintf(pod, "8080, hostIP: @node1"), "@node1", true, true},
		{"a host port on the loopback", fmt.Sprintf(pod, "8080, hostIP: @lo"), "@node1", true, false},
		{"a host port among node ports", fmt.Sprintf(pod, "30001"), "@node1", false, false},
	} {
		for _, family := range []string{"IPv4", "IPv6"} {
			t.Run(tc.name+"/"+family, func(t *testing.T) {
				r := newRig(t, service.Config{}, small())
				r.agent(t, bpftest.LoadMaps(t, bpf.Settings{NodePortMin: 30000, NodePortMax: 32767}, small()))
				own := []netip.Addr{netip.MustParseAddr(clustertest.Named(tc.own, family == "IPv6", false))}
				r.Set(t, clustertest.Parse(t, clustertest.Named(tc.objects, family == "IPv6", true)))
				step := func(name string, want bool, do func() error) {
					t.Helper()
					if err := do(); err != nil {
						t.Fatal(err)
					}
					if got := r.ownPortsSet(t); got != want {
						t.Errorf("%s: own_ports is set: %v, want %v", name, got, want)
					}
				}
				step("not known", tc.unknown, r.sync)
				step("known", tc.want, func() error { return r.SetOwn(own) })
				step("another agent", tc.unknown, func() error { r.agent(t, r.datapath); return nil })
				step("known again", tc.want, func() error { return r.SetOwn(own) })
				step("no address", tc.want && r.wild(), func() error { return r.SetOwn(nil) })
				step("known", tc.want, func() error { return r.SetOwn(own) })
				r.Set(t, clustertest.Objects{})
				step("gone", false, r.sync)
			})
		}
	}
}

// wild reports whether a host port is on any address of the node.
func (r *rig) wild() bool {
	for f := range r.Desired.Frontends.All(r.DB.ReadTxn()) {
		if f.Type == service.HostPort && f.Address.Addr().IsUnspecified() {
			return true
		}
	}
	return false
}

// Prune restores rows of addresses that were changed, and writes those that the previous agent lacked.
func TestAddressesPruned(t *testing.T) {
	r := newRig(t, service.Config{}, small())
	r.Set(t, clustertest.Parse(t, servicetest.Sized(false, 3, 0, "1", "Local")))
	if err := r.sync(); err != nil {
		t.Fatal(err)
	}
	want := r.maps(t)
	address := func(text string) bpf.DatapathFrontendKey {
		return bpf.DatapathFrontendKey{Addr: bpf.Addr(netip.MustParseAddr(clustertest.Named(text, false, false)))}
	}
	err := r.datapath.Frontends.Delete(address("@vip1"))
	if err == nil {
		err = r.datapath.Frontends.Put(address("@ext1"), bpf.DatapathFrontend{Flags: internalFlag})
	}
	if err == nil {
		err = r.datapath.Frontends.Put(address("@ext9"), bpf.DatapathFrontend{Flags: internalFlag})
	}
	if err != nil {
		t.Fatal(err)
	}
	r.agent(t, r.datapath)
	f := &frontendOps{r.Kernel}
	now := r.DB.ReadTxn()
	if err := f.Prune(t.Context(), now, r.Desired.Frontends.All(now)); err != nil {
		t.Fatal(err)
	}
	if got := r.maps(t); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
