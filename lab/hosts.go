package lab

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"myelin/lab/controller"
)

// clusterDomain ends the names of Services.
const clusterDomain = "cluster.local"

// hostsFile is where processes see a file of the lab instead of the machine's.
const hostsFile = "/etc/hosts"

// hostsPath is the file with the names that Pods of a namespace know.
func (l *Lab) hostsPath(namespace string) string { return l.path("hosts", namespace) }

// writeNames brings the files of names up to date, as DNS would be: the Services of all namespaces, and the Pods behind
// headless ones.
func (l *Lab) writeNames() error {
	objects, err := l.objects()
	if err != nil {
		return err
	}
	var pods []*corev1.Pod
	if slices.ContainsFunc(objects, isHeadless) {
		states, err := l.podStates()
		if err != nil {
			return err
		}
		pods = l.clusterOf(objects, states).Pods
	}
	if err := os.MkdirAll(l.path("hosts"), 0o755); err != nil {
		return err
	}
	namespaces := map[string]bool{}
	for _, o := range objects {
		namespaces[o.Namespace] = namespaces[o.Namespace] || o.isPod()
	}
	for namespace, hasPods := range namespaces {
		if !hasPods {
			continue
		}
		var text bytes.Buffer
		text.WriteString("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n")
		for _, o := range objects {
			if s, ok := o.typed.(*corev1.Service); ok {
				writeService(&text, s, namespace, pods)
			}
		}
		if err := replaceContent(l.hostsPath(namespace), text.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// writeService writes the lines of a Service for Pods of a namespace.
func writeService(text *bytes.Buffer, s *corev1.Service, namespace string, pods []*corev1.Pod) {
	line := func(addr, name string) {
		names := []string{
			name + "." + s.Namespace + ".svc." + clusterDomain,
			name + "." + s.Namespace + ".svc",
			name + "." + s.Namespace,
		}
		if s.Namespace == namespace {
			names = append(names, name)
		}
		fmt.Fprintf(text, "%s %s\n", addr, strings.Join(names, " "))
	}
	if s.Spec.ClusterIP != corev1.ClusterIPNone {
		for _, addr := range clusterIPs(s) {
			line(addr, s.Name)
		}
		return
	}
	for _, pod := range pods {
		if !selects(s, pod) || !controller.IsReady(pod) && !s.Spec.PublishNotReadyAddresses {
			continue
		}
		for _, ip := range pod.Status.PodIPs {
			line(ip.IP, s.Name)
			if pod.Spec.Hostname != "" && pod.Spec.Subdomain == s.Name {
				line(ip.IP, pod.Spec.Hostname+"."+s.Name)
			}
		}
	}
}

// clusterIPs are a Service's own addresses.
func clusterIPs(s *corev1.Service) []string {
	ips := s.Spec.ClusterIPs
	if len(ips) == 0 {
		ips = []string{s.Spec.ClusterIP}
	}
	return slices.DeleteFunc(slices.Clone(ips), func(text string) bool {
		_, err := netip.ParseAddr(text)
		return err != nil
	})
}

// selects reports whether a Pod is behind a Service.
func selects(s *corev1.Service, pod *corev1.Pod) bool {
	if len(s.Spec.Selector) == 0 || s.Namespace != pod.Namespace {
		return false
	}
	for k, v := range s.Spec.Selector {
		if have, ok := pod.Labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}

// replaceContent changes what is in a file, which stays the same file: it is mounted in Pods.
func replaceContent(path string, data []byte) error {
	old, err := os.ReadFile(path)
	if err == nil && bytes.Equal(old, data) {
		return nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, 0)
	return errors.Join(err, f.Truncate(int64(len(data))), f.Close())
}

// mountHosts gives the calling thread, and the process that it starts, a mount namespace in which a file is /etc/hosts.
// Mounts of network namespaces and BPF file systems are left out: copies of them would keep what they are of alive.
func mountHosts(file string) error {
	if _, err := os.Stat(hostsFile); err != nil {
		return nil // a machine without the file; names are not there
	}
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	mounts, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return fmt.Errorf("list mounts: %w", err)
	}
	if err := unix.Unmount(netnsDir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmount %s: %w", netnsDir, err)
	}
	for line := range strings.Lines(string(mounts)) {
		fields, kind, _ := strings.Cut(line, " - ")
		point := strings.Fields(fields)[4]
		own := strings.HasPrefix(point, netnsDir+"/") || strings.HasPrefix(kind, "bpf ")
		if own {
			// Those below the directory may have gone with it.
			_ = unix.Unmount(point, unix.MNT_DETACH)
		}
	}
	if err := unix.Mount(file, hostsFile, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s: %w", hostsFile, err)
	}
	return nil
}

// podHosts is the file of names for the processes of a pod, empty for pods that share their node's network: they have
// the node's names.
func (l *Lab) podHosts(s PodState) string {
	path := l.hostsPath(s.Namespace)
	if _, err := os.Stat(path); s.HostNetwork || err != nil {
		return ""
	}
	return filepath.Clean(path)
}

// serviceEnv is what a kubelet tells containers of the Services of their namespace.
func (l *Lab) serviceEnv(pod *corev1.Pod) ([]string, error) {
	if pod.Spec.EnableServiceLinks != nil && !*pod.Spec.EnableServiceLinks {
		return nil, nil
	}
	objects, err := l.objects()
	if err != nil {
		return nil, err
	}
	var env []string
	for _, o := range objects {
		s, ok := o.typed.(*corev1.Service)
		if !ok || s.Namespace != pod.Namespace || len(clusterIPs(s)) == 0 || len(s.Spec.Ports) == 0 {
			continue
		}
		name := envName(s.Name)
		host := clusterIPs(s)[0]
		env = append(env, name+"_SERVICE_HOST="+host, fmt.Sprintf("%s_SERVICE_PORT=%d", name, s.Spec.Ports[0].Port))
		for i, p := range s.Spec.Ports {
			if p.Name != "" {
				env = append(env, fmt.Sprintf("%s_SERVICE_PORT_%s=%d", name, envName(p.Name), p.Port))
			}
			protocol := strings.ToLower(string(cmp.Or(p.Protocol, corev1.ProtocolTCP)))
			url := fmt.Sprintf("%s://%s", protocol, netip.AddrPortFrom(netip.MustParseAddr(host), uint16(p.Port)))
			if i == 0 {
				env = append(env, name+"_PORT="+url)
			}
			link := fmt.Sprintf("%s_PORT_%d_%s", name, p.Port, strings.ToUpper(protocol))
			env = append(
				env,
				link+"="+url,
				link+"_PROTO="+protocol,
				fmt.Sprintf("%s_PORT=%d", link, p.Port),
				link+"_ADDR="+host,
			)
		}
	}
	return env, nil
}

func envName(name string) string { return strings.ToUpper(strings.ReplaceAll(name, "-", "_")) }

func isHeadless(o *object) bool {
	s, ok := o.typed.(*corev1.Service)
	return ok && s.Spec.ClusterIP == corev1.ClusterIPNone
}
