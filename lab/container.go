package lab

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Pauses between restarts of a container: double each time, from first to last; and from first again after it ran for
// calm. Kubernetes' own are a hundred times as long; that would be too long here.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = 10 * time.Second
	calm       = 10 * time.Second
)

// unknownExit stands for a status that was not collected, because the supervisor that started the process is gone.
const unknownExit = 255

func (l *Lab) containerLog(node, namespace, pod, container string) string {
	return l.path("nodes", node, "pods", shorten(podFile(namespace, pod)), container+".log")
}

// runContainer runs one container, again and again as the policy has it, and returns its last exit status. It adopts
// the process that the pod's state names. When ctx ends it returns, and leaves the process as it is.
func (w *worker) runContainer(
	ctx context.Context,
	pod *corev1.Pod,
	c corev1.Container,
	policy corev1.RestartPolicy,
) int {
	pause := firstPause
	for {
		st := w.container(c.Name)
		if st.Exited && !again(policy, st.ExitCode) {
			return st.ExitCode
		}
		begin := time.Now()
		if !st.Exited && st.Process.Alive() {
			w.adopt(ctx, c.Name, st.Process)
		} else {
			w.runOnce(ctx, pod, c)
		}
		st = w.container(c.Name)
		if ctx.Err() != nil || !again(policy, st.ExitCode) {
			return st.ExitCode
		}
		if time.Since(begin) > calm {
			pause = firstPause
		}
		select {
		case <-ctx.Done():
			return st.ExitCode
		case <-time.After(pause):
		}
		pause = min(2*pause, lastPause)
	}
}

func again(policy corev1.RestartPolicy, code int) bool {
	return policy == corev1.RestartPolicyAlways || policy == "" || policy == corev1.RestartPolicyOnFailure && code != 0
}

// adopt waits for a process that an earlier supervisor started.
func (w *worker) adopt(ctx context.Context, container string, p Process) {
	if p.wait(ctx) == nil {
		w.exited(container, unknownExit, "")
	}
}

// runOnce starts a container and waits until it ends.
func (w *worker) runOnce(ctx context.Context, pod *corev1.Pod, c corev1.Container) {
	s := w.snapshot()
	cg := w.lab.podCgroup(s.Node, s.Namespace, s.Name).join(c.Name)
	// What an earlier run left behind would keep its ports.
	if err := cg.clear(ctx); err != nil && ctx.Err() == nil {
		w.exited(c.Name, 128, err.Error())
		return
	}
	if ctx.Err() != nil {
		return
	}
	d, err := w.lab.containerDaemon(pod, c, s)
	if err != nil {
		w.exited(c.Name, 127, err.Error())
		return
	}
	d.cg, d.hosts = cg, w.lab.podHosts(s)
	if err := w.lab.logStandIn(c, d.log); err != nil {
		w.exited(c.Name, 128, err.Error())
		return
	}
	p, ended, err := d.start(s.Netns)
	if err != nil {
		w.exited(c.Name, 127, err.Error())
		return
	}
	w.started(c.Name, p)
	select {
	case state := <-ended:
		w.exited(c.Name, exitCode(state), "")
	case <-ctx.Done():
	}
}

// containerDaemon is the container's command on the machine's own file system.
func (l *Lab) containerDaemon(pod *corev1.Pod, c corev1.Container, s PodState) (daemon, error) {
	own, vars, err := l.containerEnv(pod, c, s)
	if err != nil {
		return daemon{}, err
	}
	d := daemon{
		env: append(l.environment(), own...),
		dir: c.WorkingDir,
		log: l.containerLog(s.Node, s.Namespace, s.Name, c.Name),
	}
	if len(c.Command) == 0 {
		if d.argv, err = l.standIn(pod, c); err != nil {
			return daemon{}, err
		}
	} else {
		for _, a := range slices.Concat(c.Command, c.Args) {
			d.argv = append(d.argv, expand(a, vars))
		}
	}
	if d.argv[0] == "myelin" && l.opts.Binary != "" {
		d.argv[0] = l.opts.Binary
	}
	if strings.ContainsRune(d.argv[0], os.PathSeparator) {
		return d, nil
	}
	path, err := exec.LookPath(d.argv[0])
	if err != nil {
		return d, fmt.Errorf("container %s: %w", c.Name, err)
	}
	d.argv[0] = path
	return d, nil
}

// containerEnv is what a container gets beside the lab's environment, and what its command can refer to.
func (l *Lab) containerEnv(
	pod *corev1.Pod,
	c corev1.Container,
	s PodState,
) (env []string, vars map[string]string, err error) {
	env, err = l.serviceEnv(pod)
	if err != nil {
		return nil, nil, err
	}
	vars = map[string]string{}
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		vars[name] = value
	}
	env = append(
		env,
		"HOSTNAME="+cmp.Or(pod.Spec.Hostname, pod.Name),
		"MYELIN_LAB_POD="+s.key(),
		"MYELIN_LAB_NODE="+s.Node,
	)
	for _, e := range c.Env {
		value := expand(e.Value, vars)
		if e.ValueFrom != nil {
			if value, err = l.fieldValue(e, s); err != nil {
				return nil, nil, err
			}
		}
		vars[e.Name] = value
		env = append(env, e.Name+"="+value)
	}
	return env, vars, nil
}

// execEnv is the environment of a pod's first container, for commands that are run in the pod.
func (l *Lab) execEnv(s PodState) []string {
	desired, err := l.desired()
	pod := desired[s.key()]
	if err != nil || pod == nil || len(pod.Spec.Containers) == 0 {
		return nil // it is on its way out; the command goes without
	}
	env, _, err := l.containerEnv(pod, pod.Spec.Containers[0], s)
	if err != nil {
		return nil // the container itself says why it does not run
	}
	return env
}

// fieldValue is the value of a variable by the downward API.
func (l *Lab) fieldValue(e corev1.EnvVar, s PodState) (string, error) {
	if e.ValueFrom.FieldRef == nil {
		return "", fmt.Errorf("env %s: the lab has values and fieldRef only", e.Name)
	}
	hosts := l.Node(s.Node).Addrs()
	fields := map[string]string{
		"metadata.name":      s.Name,
		"metadata.namespace": s.Namespace,
		"metadata.uid":       s.UID,
		"spec.nodeName":      s.Node,
		"status.podIP":       joinAddrs(s.Addresses[:min(1, len(s.Addresses))]),
		"status.podIPs":      joinAddrs(s.Addresses),
		"status.hostIP":      joinAddrs(hosts[:min(1, len(hosts))]),
		"status.hostIPs":     joinAddrs(hosts),
	}
	value, ok := fields[e.ValueFrom.FieldRef.FieldPath]
	if !ok {
		return "", fmt.Errorf("env %s: the lab has no field %q", e.Name, e.ValueFrom.FieldRef.FieldPath)
	}
	return value, nil
}

func joinAddrs(addrs []netip.Addr) string {
	var s []string
	for _, a := range addrs {
		s = append(s, a.String())
	}
	return strings.Join(s, ",")
}

// expand replaces $(NAME) by the variables seen so far, as Kubernetes does: unknown ones stay as they are, $$ is $.
func expand(s string, vars map[string]string) string {
	var b strings.Builder
	for {
		i := strings.IndexByte(s, '$')
		if i < 0 || i == len(s)-1 {
			return b.String() + s
		}
		b.WriteString(s[:i])
		s = s[i:]
		end := strings.IndexByte(s, ')')
		switch {
		case s[1] == '$':
			b.WriteByte('$')
			s = s[2:]
		case s[1] == '(' && end > 0:
			value, ok := vars[s[2:end]]
			if !ok {
				value = s[:end+1]
			}
			b.WriteString(value)
			s = s[end+1:]
		default:
			b.WriteByte('$')
			s = s[1:]
		}
	}
}

// withoutCommand names the containers that have only an image.
func withoutCommand(pod *corev1.Pod) []string {
	var names []string
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if len(c.Command) == 0 {
			names = append(names, c.Name)
		}
	}
	return names
}

// grace is how long the pod's processes may take to end when asked to.
func (l *Lab) grace(pod *corev1.Pod) time.Duration {
	asked := l.opts.Grace
	if pod != nil && pod.Spec.TerminationGracePeriodSeconds != nil {
		asked = time.Duration(*pod.Spec.TerminationGracePeriodSeconds) * time.Second
	}
	return cmp.Or(min(asked, l.opts.Grace), time.Millisecond)
}
