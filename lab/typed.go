package lab

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"myelin/cluster"
	"myelin/lab/controller"
)

// decode reads the objects that the lab looks into. What it makes of them is never changed.
func (o *object) decode() {
	typed := o.newTyped()
	if typed == nil {
		return
	}
	if err := yaml.Unmarshal(o.data, typed); err != nil {
		o.fault = fmt.Errorf("%s: %w", o, err)
		return
	}
	if o.inNamespace() {
		typed.SetNamespace(o.Namespace)
	}
	o.typed = typed
}

// newTyped is an empty object of the kind, nil for kinds that the lab does not look into.
func (o *object) newTyped() controller.Object {
	if o.APIVersion == "v1" {
		switch o.Kind {
		case "Pod":
			return &corev1.Pod{}
		case "Service":
			return &corev1.Service{}
		case "Node":
			return &corev1.Node{}
		}
	}
	if !o.isWorkload() {
		return nil
	}
	switch o.Kind {
	case "Deployment":
		return &appsv1.Deployment{}
	case "ReplicaSet":
		return &appsv1.ReplicaSet{}
	case "StatefulSet":
		return &appsv1.StatefulSet{}
	case "DaemonSet":
		return &appsv1.DaemonSet{}
	}
	return &batchv1.Job{}
}

// strict finds unknown fields and bad values of an object that decode took.
func (o *object) strict() error {
	data, err := yaml.YAMLToJSON(o.data)
	if err != nil {
		return err
	}
	if faults := cluster.Decode(data, o.newTyped()); len(faults) > 0 {
		return faults
	}
	return nil
}

// templateOf is the Pod template of a workload.
func templateOf(o controller.Object) *corev1.PodTemplateSpec {
	switch o := o.(type) {
	case *appsv1.Deployment:
		return &o.Spec.Template
	case *appsv1.ReplicaSet:
		return &o.Spec.Template
	case *appsv1.StatefulSet:
		return &o.Spec.Template
	case *appsv1.DaemonSet:
		return &o.Spec.Template
	case *batchv1.Job:
		return &o.Spec.Template
	}
	return nil
}

// checkWorkloads refuses workloads that could never run, with all that is wrong with the first one.
func checkWorkloads(objects []*object) error {
	for _, o := range objects {
		if !o.isWorkload() {
			continue
		}
		if o.fault != nil {
			return o.fault
		}
		if err := o.strict(); err != nil {
			return fmt.Errorf("%s: %w", o, err)
		}
		if faults := controller.Check(o.typed); len(faults) > 0 {
			return fmt.Errorf("%s: %w", o, faults)
		}
		pod := &corev1.Pod{Spec: templateOf(o.typed).Spec}
		pod.Namespace, pod.Name = o.Namespace, o.Name
		if err := checkPod(pod); err != nil {
			return fmt.Errorf("%s: spec.template: %w", o, err)
		}
	}
	return nil
}

// objectCache keeps the objects of files that have not changed since.
type objectCache struct {
	mu    sync.Mutex
	files map[string]cachedFile
}

type cachedFile struct {
	size, time int64
	inode      uint64
	objects    []*object
}

// read is readObjects of a directory. Its objects must not be changed.
func (c *objectCache) read(dir string) ([]*object, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	files := map[string]cachedFile{}
	objects, err := readPath(dir, func(file string) ([]*object, error) {
		info, err := os.Stat(file)
		if errors.Is(err, os.ErrNotExist) {
			return nil, nil // deleted since the directory was read
		}
		if err != nil {
			return nil, err
		}
		now := cachedFile{size: info.Size(), time: info.ModTime().UnixNano()}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			now.inode = st.Ino
		}
		old, ok := c.files[file]
		now.objects = old.objects
		if !ok || now.size != old.size || now.time != old.time || now.inode != old.inode {
			if now.objects, err = readFile(file); errors.Is(err, os.ErrNotExist) {
				return nil, nil
			}
		}
		if err == nil {
			files[file] = now
		}
		return now.objects, err
	})
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	c.files = files
	return objects, unique(objects)
}

// writeManifest writes a file of the lab's manifests. The cache forgets it, as two writes within a tick of the clock
// may leave a file of the same size, time and inode number.
func (l *Lab) writeManifest(name string, data []byte) error {
	path := l.path("manifests", name)
	err := writeFile(path, data)
	l.cache.mu.Lock()
	defer l.cache.mu.Unlock()
	delete(l.cache.files, path)
	return err
}

// objects are all of the lab's manifests. They must not be changed.
func (l *Lab) objects() ([]*object, error) { return l.cache.read(l.Manifests()) }
