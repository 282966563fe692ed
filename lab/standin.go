package lab

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// notRun is what the lab says of an image.
func notRun(image string) string {
	return fmt.Sprintf("image %s is not run; `myelin lab serve` stands in", cmp.Or(image, "(none)"))
}

// standsIn reports whether a server stands in for images.
func (l *Lab) standsIn() bool { return l.opts.Binary != "" && l.opts.Images == ImagesServe }

// StandIns has a line for each image of the lab that is not run, as containers with it have no command.
func (l *Lab) StandIns() ([]string, error) {
	objects, err := l.objects()
	return l.notRun(objects), err
}

func (l *Lab) notRun(objects []*object) []string {
	var lines []string
	if !l.standsIn() {
		return nil // the Pods are Pending, and say why
	}
	for _, o := range objects {
		if o.typed == nil {
			continue
		}
		var spec *corev1.PodSpec
		if pod, ok := o.typed.(*corev1.Pod); ok {
			spec = &pod.Spec
		} else if t := templateOf(o.typed); t != nil {
			spec = &t.Spec
		} else {
			continue
		}
		for _, c := range spec.Containers {
			if line := notRun(c.Image); len(c.Command) == 0 && !slices.Contains(lines, line) {
				lines = append(lines, line)
			}
		}
	}
	slices.Sort(lines)
	return lines
}

// standIn is the command of a container whose image would have had one: a server on the container's ports. An init
// container ends at once, as the others wait for it.
func (l *Lab) standIn(pod *corev1.Pod, c corev1.Container) ([]string, error) {
	if slices.ContainsFunc(pod.Spec.InitContainers, func(i corev1.Container) bool { return i.Name == c.Name }) {
		return []string{"true"}, nil
	}
	var ports []string
	add := func(port int32, protocol corev1.Protocol) {
		text := fmt.Sprintf("%d/%s", port, cmp.Or(protocol, corev1.ProtocolTCP))
		if !slices.Contains(ports, text) {
			ports = append(ports, text)
		}
	}
	for _, p := range c.Ports {
		add(p.ContainerPort, p.Protocol)
	}
	if len(ports) == 0 {
		objects, err := l.objects()
		if err != nil {
			return nil, err
		}
		for _, o := range objects {
			if s, ok := o.typed.(*corev1.Service); ok && selects(s, pod) {
				for _, p := range s.Spec.Ports {
					add(cmp.Or(p.TargetPort.IntVal, p.Port), p.Protocol)
				}
			}
		}
	}
	if len(ports) == 0 {
		ports = []string{"80/TCP"}
	}
	return []string{l.opts.Binary, "lab", "serve", "--ports", strings.Join(ports, ",")}, nil
}

// logStandIn begins a container's log with what stands in for its image.
func (l *Lab) logStandIn(c corev1.Container, log string) error {
	if len(c.Command) > 0 {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(log), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = fmt.Fprintln(f, notRun(c.Image))
	return err
}
