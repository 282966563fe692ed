package labtest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"myelin/test/lab/oracle"
)

// fuzzMode is a cluster to fuzz.
type fuzzMode struct {
	name, mode string
	values     map[string]any
	services   bool
	attempts   int      // under the same policies; 0: roundAttempts
	ways       []string // of lasting connections; nil: pod to pod on a node and across nodes, and pod to the world
}

func fuzzModes() []fuzzMode {
	direct := perPacket()
	direct["loadBalancer.mode"] = "dsr"
	geneve := maps.Clone(direct)
	geneve["loadBalancer.dsrDispatch"] = "geneve"
	services := []string{wayLocal, wayRemote, wayWorld, wayService, wayOutside}
	return []fuzzMode{
		{name: "native", mode: "native"},
		{name: "legacy", mode: "legacy"},
		{name: "masquerade", mode: "native-flows", attempts: 500, ways: []string{wayWorld, wayWorld, wayWorld}},
		{name: "host", mode: "native", values: hostValues("disabled")},
		{name: "host-xdp", mode: "native", values: hostValues("testing-only")},
		{name: "vxlan", mode: "vxlan"},
		{name: "dsr", mode: "native", values: direct, services: true, ways: services},
		{name: "geneve", mode: "native", values: geneve, services: true, ways: services},
	}
}

// hostValues turn policies of nodes on, and the denylist, by tc or by XDP.
func hostValues(acceleration string) map[string]any {
	return map[string]any{"hostFirewall.enabled": true, prefilterGroups: []string{"blocked"},
		"loadBalancer.acceleration": acceleration}
}

// upMode brings a mode's cluster up.
func upMode(t *testing.T, m fuzzMode, seed uint64) *fuzz {
	t.Helper()
	values := map[string]any{"cluster.name": "a"}
	maps.Copy(values, m.values)
	z := upFuzz(t, setup{mode: modeNamed(m.mode), values: values}, seed)
	z.name, z.hosts = m.name, values["hostFirewall.enabled"] != nil
	z.prefilter = values[prefilterGroups] != nil
	z.senders, z.received, z.reported = map[*oracle.Place]int{}, map[string]int{}, map[string]bool{}
	for i, p := range z.model.Places {
		check(t, z.ends[i].Do(func() (err error) {
			z.senders[p], err = packetSender()
			return err
		}))
	}
	t.Cleanup(func() {
		for _, fd := range z.senders {
			unix.Close(fd)
		}
	})
	if m.services {
		z.addServices(t)
		z.routeOutside(1)
	}
	z.picks = rand.New(rand.NewPCG(seed, 2))
	z.sortFronts()
	z.addSlots(m)
	return z
}

// packetSender opens a socket that sends frames by eth0 and receives none.
func packetSender() (int, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	eth0, err := linkIndex("eth0")
	if err != nil {
		return -1, err
	}
	return fd, unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: eth0})
}

// addServices has Services lead to half of the pods, two to one of them, at addresses in the cluster and outside.
func (z *fuzz) addServices(t *testing.T) {
	t.Helper()
	z.model.Services = map[oracle.Frontend][]netip.AddrPort{}
	for i, k := range []int{0, 1, 2, 3, 0} {
		pod, n, name := z.base.Pods[k], 60+i, fmt.Sprintf("svc%d", i)
		here := "metadata: {namespace: " + pod.Namespace + ", name"
		yaml := strings.Replace(z.outsideYAML(name, n, ""), "metadata: {name", here, 1)
		yaml = strings.NewReplacer("targetPort: 7001", "targetPort: 53").Replace(yaml)
		for _, ip := range pod.Status.PodIPs {
			a := netip.MustParseAddr(ip.IP)
			slice := strings.Replace(sliceYAML(name, family(a)), "metadata: {name", here, 1)
			yaml += strings.Replace(slice, "port: 7001", "port: 53", 1) + endpointYAML(a, pod.Spec.NodeName) + "---\n"
		}
		z.apply(name, yaml)
		for _, ip := range pod.Status.PodIPs {
			z.addFrontends(n, netip.MustParseAddr(ip.IP))
		}
	}
}

// addFrontends notes where a Service of a pod is reached.
func (z *fuzz) addFrontends(n int, pod netip.Addr) {
	f := family(pod)
	z.generator.Services = append(z.generator.Services, at(serviceAddr(n, f), 53), at(serviceAddr(n, f), 80),
		at(lbAddr(n, f), 80), at(nodeAddr(1, f), uint16(30000+n)), at(nodeAddr(2, f), uint16(30500+n)))
	fronts := map[uint8][]netip.AddrPort{
		oracle.TCP: {at(serviceAddr(n, f), 80), at(lbAddr(n, f), 80)},
		oracle.UDP: {at(serviceAddr(n, f), 53), at(lbAddr(n, f), 53)},
	}
	for node := 1; node <= 2; node++ {
		fronts[oracle.TCP] = append(fronts[oracle.TCP], at(nodeAddr(node, f), uint16(30000+n)))
		fronts[oracle.UDP] = append(fronts[oracle.UDP], at(nodeAddr(node, f), uint16(30500+n)))
	}
	for proto, port := range map[uint8]uint16{oracle.TCP: 8080, oracle.UDP: 53} {
		for _, front := range fronts[proto] {
			z.model.Services[oracle.Frontend{AddrPort: front, Proto: proto}] = []netip.AddrPort{at(pod, port)}
		}
	}
}

// linkIndex is a device's in the namespace of the calling thread.
func linkIndex(name string) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq(name)
	if err != nil {
		return 0, err
	}
	err = unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, request)
	return int(request.Uint32()), err
}
