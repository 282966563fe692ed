package lab

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// podIfName is the interface that kubelet's runtimes ask for.
const podIfName = "eth0"

// plugins executes CNI plugins where a container runtime would: in the node's namespace and control group.
type plugins struct {
	node *Node
	*version.PluginDecoder
}

var _ invoke.Exec = plugins{}

// ExecPlugin implements invoke.Exec.
func (p plugins) ExecPlugin(ctx context.Context, path string, stdin []byte, env []string) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, path)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, bytes.NewReader(stdin), &stdout, &stderr
	err := p.node.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err == nil {
		return stdout.Bytes(), nil
	}
	// A plugin that fails says so on its standard output, as the CNI specification's section "Error" has it.
	failure := &types.Error{}
	if json.Unmarshal(stdout.Bytes(), failure) == nil && failure.Code != 0 {
		return nil, failure
	}
	return nil, fmt.Errorf("%s: %w: %s%s", path, err, stdout.String(), stderr.String())
}

// FindInPath implements invoke.Exec.
func (p plugins) FindInPath(plugin string, paths []string) (string, error) {
	return invoke.FindInPath(plugin, paths)
}

// CNI is libcni as the node's container runtime uses it: plugins run in the node's namespace.
func (n *Node) CNI() *libcni.CNIConfig {
	return libcni.NewCNIConfigWithCacheDir([]string{n.path("cni", "bin")}, n.path("cni", "cache"),
		plugins{node: n, PluginDecoder: &version.PluginDecoder{}})
}

// Conflist is the node's CNI configuration: the first list of its directory, by name, as container runtimes take it.
func (n *Node) Conflist() (*libcni.NetworkConfigList, error) {
	list, _, err := n.conflist()
	return list, err
}

func (n *Node) conflist() (*libcni.NetworkConfigList, []byte, error) {
	files, err := libcni.ConfFiles(n.path("cni", "net.d"), []string{".conflist"})
	if err != nil {
		return nil, nil, fmt.Errorf("list CNI configurations: %w", err)
	}
	if len(files) == 0 {
		return nil, nil, fmt.Errorf("no CNI configuration in %s", n.path("cni", "net.d"))
	}
	first := files[0]
	for _, f := range files {
		first = min(first, f)
	}
	data, err := os.ReadFile(first)
	if err != nil {
		return nil, nil, fmt.Errorf("read CNI configuration: %w", err)
	}
	list, err := libcni.ConfListFromBytes(data)
	if err != nil {
		return nil, nil, fmt.Errorf("read CNI configuration %s: %w", first, err)
	}
	return list, data, nil
}

// runtimeConf holds the arguments of a CNI call for a pod, as containerd has them.
func runtimeConf(s PodState) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{
		ContainerID: s.ContainerID,
		NetNS:       netnsPath(s.Netns),
		IfName:      podIfName,
		Args: [][2]string{
			{"IgnoreUnknown", "1"},
			{"K8S_POD_NAMESPACE", s.Namespace},
			{"K8S_POD_NAME", s.Name},
			{"K8S_POD_INFRA_CONTAINER_ID", s.ContainerID},
			{"K8S_POD_UID", s.UID},
		},
	}
}

// newState is a pod's state before anything of it exists.
func (l *Lab) newState(pod *corev1.Pod) PodState {
	s := PodState{
		Namespace:   pod.Namespace,
		Name:        pod.Name,
		UID:         string(pod.UID),
		Node:        pod.Spec.NodeName,
		Hash:        specHash(pod),
		HostNetwork: pod.Spec.HostNetwork,
		Netns:       l.podNetns(pod.Spec.NodeName, pod.Namespace, pod.Name),
		ContainerID: randomHex(32),
		Phase:       "Pending",
		Terminating: terminating(pod),
		Owner:       metav1.GetControllerOf(pod),
	}
	if s.UID == "" {
		s.UID = string(newUID())
	}
	if s.HostNetwork {
		s.Netns = l.nodeNetns(s.Node)
	}
	return s
}

func randomHex(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// addNetwork makes the pod's namespace and has the plugin connect it. It completes s.
func (l *Lab) addNetwork(ctx context.Context, s *PodState) error {
	if err := l.podCgroup(s.Node, s.Namespace, s.Name).create(); err != nil {
		return err
	}
	node := l.Node(s.Node)
	if s.HostNetwork {
		s.Addresses, s.Ready = node.Addrs(), true
		return nil
	}
	list, err := libcni.ConfListFromBytes(s.Conflist)
	if err != nil {
		return fmt.Errorf("read CNI configuration: %w", err)
	}
	if err := createNetns(s.Netns); err != nil {
		return err
	}
	result, err := node.CNI().AddNetworkList(ctx, list, runtimeConf(*s))
	if err != nil {
		return fmt.Errorf("CNI ADD for pod %s: %w", s.key(), err)
	}
	if s.Addresses, err = addressesOf(result); err != nil {
		return fmt.Errorf("CNI ADD for pod %s: %w", s.key(), err)
	}
	s.Ready = true
	return nil
}

// delNetwork has the plugin disconnect the pod, and removes its namespace. It may be called any number of times.
func (l *Lab) delNetwork(ctx context.Context, s PodState) error {
	if s.HostNetwork {
		return nil
	}
	if len(s.Conflist) > 0 {
		list, err := libcni.ConfListFromBytes(s.Conflist)
		if err != nil {
			return fmt.Errorf("read CNI configuration: %w", err)
		}
		if err := l.Node(s.Node).CNI().DelNetworkList(ctx, list, runtimeConf(s)); err != nil {
			return fmt.Errorf("CNI DEL for pod %s: %w", s.key(), err)
		}
	}
	return deleteNetns(s.Netns)
}

// addressesOf lists the pod's addresses in a plugin's result.
func addressesOf(result types.Result) ([]netip.Addr, error) {
	r, err := types100.NewResultFromResult(result)
	if err != nil {
		return nil, err
	}
	var addrs []netip.Addr
	for _, ip := range r.IPs {
		a, ok := netip.AddrFromSlice(ip.Address.IP)
		if !ok {
			return nil, fmt.Errorf("result has a bad address %v", ip.Address.IP)
		}
		addrs = append(addrs, a.Unmap())
	}
	if len(addrs) == 0 {
		return nil, errors.New("result has no address")
	}
	return addrs, nil
}
