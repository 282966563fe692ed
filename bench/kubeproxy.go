package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// kubeProxy is the real one, in a node.
type kubeProxy struct {
	mode     string // as kube-proxy calls it: iptables, nftables
	programs string // folder of kube-proxy, iptables and nft
	dir      string
	stops    []func()
}

// kubeProxyPath is a directPath to a Service that the real kube-proxy translates, in the client's node, by the rules
// that it makes of as many Services.
type kubeProxyPath struct {
	directPath
	kubeProxy
	services int
}

// kubeProxyScenario is pod→Service by kube-proxy in a mode ("iptables" or "nftables"), that Service being one of so
// many, at least 1. programs is the folder of kube-proxy, iptables and nft.
func kubeProxyScenario(programs, mode string, services int) Scenario {
	name := "kube-proxy-" + mode
	return &kubeProxyPath{directPath{kernelPath: kernelPath{name: name, pods: true}},
		kubeProxy{mode: mode, programs: programs}, services}
}

func (k *kubeProxyPath) Setup(ctx context.Context, family Family) (Path, error) {
	path, err := k.directPath.Setup(ctx, family)
	if err != nil {
		return path, err
	}
	var all objects
	all.addNetperf(family, path.Listen)
	all.addOthers(family, k.services-1)
	path.Target, path.Port = clusterIP(family), dataPort
	const ports = 3 // of netperf's Service
	return path, k.run(ctx, k.prefix, family, &all, k.services-1+ports)
}

// run starts it in the node a of a prefix, and waits until the kernel has rules for all objects, which have so many
// cluster IPs and ports.
func (k *kubeProxy) run(ctx context.Context, prefix string, family Family, all *objects, ports int) (err error) {
	if k.dir, err = os.MkdirTemp("", prefix); err != nil {
		return err
	}
	node := &corev1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: family.addressing().wire[0]}}
	api, err := newAPIServer(node, all)
	if err != nil {
		return err
	}
	netns := prefix + "a"
	url, stop, err := api.serve(netns)
	if err != nil {
		return err
	}
	k.stops = append(k.stops, stop)
	if err := k.start(ctx, netns, url, family); err != nil {
		return fmt.Errorf("start kube-proxy: %w", err)
	}
	return k.programmed(ctx, netns, family, ports)
}

const kubeProxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %s
clusterCIDR: %s
hostnameOverride: a
clientConnection: {kubeconfig: %s, contentType: application/json, acceptContentTypes: application/json}
oomScoreAdj: null
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`

const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: bench, cluster: {server: %s}}]
contexts: [{name: bench, context: {cluster: bench}}]
current-context: bench
`

// start runs kube-proxy in the node. Pods of both nodes are in its clusterCIDR, so that it leaves their addresses as
// they are.
func (k *kubeProxy) start(ctx context.Context, netns, url string, family Family) error {
	pods := "10.0.0.0/8"
	if family == IPv6 {
		pods = "fd00:10::/32"
	}
	settings, access := filepath.Join(k.dir, "config.yaml"), filepath.Join(k.dir, "kubeconfig")
	if err := os.WriteFile(settings, fmt.Appendf(nil, kubeProxyConfig, k.mode, pods, access), 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(access, fmt.Appendf(nil, kubeconfig, url), 0o644); err != nil {
		return err
	}
	log, err := os.Create(k.log())
	if err != nil {
		return err
	}
	defer log.Close() // the process has its own
	cmd := k.command(ctx, netns, "kube-proxy", "--config="+settings)
	cmd.Stdout, cmd.Stderr = log, log
	stop, err := daemon(cmd)
	if err != nil {
		return err
	}
	k.stops = append(k.stops, stop)
	return nil
}

func (k *kubeProxy) log() string { return filepath.Join(k.dir, "kube-proxy.log") }

// command runs a program of the folder, which finds the others there.
func (k *kubeProxy) command(ctx context.Context, netns, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", netns, filepath.Join(k.programs, program)},
		args...)...)
	cmd.Env = append(os.Environ(), "PATH="+k.programs+":"+os.Getenv("PATH"))
	return cmd
}

// kubeProxyPatience: on a busy machine iptables takes minutes to write the rules of 10,000 Services.
const kubeProxyPatience = 15 * time.Minute

// programmed waits until the kernel has rules for that many ports: with fewer, kube-proxy would be faster than it
// should.
func (k *kubeProxy) programmed(ctx context.Context, netns string, family Family, ports int) error {
	program, args, mark := "iptables-save", []string{"-t", "nat"}, "-j KUBE-SVC-"
	if family == IPv6 {
		program = "ip6tables-save"
	}
	if k.mode == "nftables" {
		program, args, mark = "nft", []string{"list", "map", map[Family]string{IPv4: "ip", IPv6: "ip6"}[family],
			"kube-proxy", "service-ips"}, "goto service-"
	}
	have, pause := 0, time.Second
	// to list many rules is work, too
	for end := time.Now().Add(kubeProxyPatience); time.Now().Before(end); pause = min(2*pause, 20*time.Second) {
		out, err := k.command(ctx, netns, program, args...).Output()
		have = 0
		for line := range strings.Lines(string(out)) {
			// Of iptables, the chain that all packets pass; what is marked for masquerading is no Service.
			if k.mode != "iptables" || strings.HasPrefix(line, "-A KUBE-SERVICES ") {
				have += strings.Count(line, mark)
			}
		}
		if err == nil && have == ports {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
	text, err := os.ReadFile(k.log())
	return errors.Join(fmt.Errorf("kube-proxy made rules for %d of %d ports: %s", have, ports,
		text[max(0, len(text)-2000):]), err)
}

// end stops it; its rules go with the node.
func (k *kubeProxy) end() error {
	for i := range k.stops {
		k.stops[len(k.stops)-1-i]()
	}
	k.stops = nil
	if k.dir == "" {
		return nil
	}
	dir := k.dir
	k.dir = ""
	return os.RemoveAll(dir)
}

func (k *kubeProxyPath) Teardown(ctx context.Context) error {
	return errors.Join(k.end(), k.directPath.Teardown(ctx))
}
