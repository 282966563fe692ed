package lab

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	yamlutil "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"myelin/lab/controller"
)

// object is one Kubernetes object of a manifest, as it was written. The lab looks into Nodes, Pods, Services and
// workloads; the rest is for the agents.
type object struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	file              string
	data              []byte            // what agents read
	applied           []byte            // what was applied, where the lab has added to it
	typed             controller.Object // of kinds that the lab looks into; nil where fault says why
	fault             error
}

// fileName is where the object is in the lab's copy: one object, one file.
func (o *object) fileName() string {
	return shorten(strings.ToLower(o.Kind)+"_"+podFile(o.Namespace, o.Name)) + ".yaml"
}

func (o *object) String() string {
	return strings.TrimPrefix(fmt.Sprintf("%s: %s %s/%s", o.file, o.Kind, o.Namespace, o.Name), ": ")
}

// isPod, isNode, isService and isWorkload ignore objects of the same kind in another API group.
func (o *object) isPod() bool      { return o.Kind == "Pod" && o.APIVersion == "v1" }
func (o *object) isNode() bool     { return o.Kind == "Node" && o.APIVersion == "v1" }
func (o *object) isService() bool  { return o.Kind == "Service" && o.APIVersion == "v1" }
func (o *object) isWorkload() bool { return controller.IsWorkload(o.APIVersion, o.Kind) }

// inNamespace reports whether the lab itself has to know which namespace an object is in.
func (o *object) inNamespace() bool { return o.isPod() || o.isService() || o.isWorkload() }

// readObjects reads a YAML or JSON file, or all of a directory and below; folders called status hold what labs write.
func readObjects(path string) ([]*object, error) { return readAll(nil, path) }

// readAll is readObjects for several paths; "-" is stdin, if there is one.
func readAll(stdin io.Reader, paths ...string) ([]*object, error) {
	var all []*object
	for _, path := range paths {
		read := func(path string) ([]*object, error) { return readPath(path, readFile) }
		if path == "-" && stdin != nil {
			read = func(string) ([]*object, error) { return readStream(stdin) }
		}
		objects, err := read(path)
		if err != nil {
			return nil, fmt.Errorf("read manifests: %w", err)
		}
		all = append(all, objects...)
	}
	return all, unique(all)
}

// unique refuses an object that is there twice.
func unique(all []*object) error {
	seen := map[string]*object{}
	for _, o := range all {
		if other := seen[o.fileName()]; other != nil {
			return fmt.Errorf("read manifests: %s: in %s too", o, other.file)
		}
		seen[o.fileName()] = o
	}
	return nil
}

func readStream(stdin io.Reader) ([]*object, error) {
	data, err := io.ReadAll(stdin)
	if err != nil {
		return nil, fmt.Errorf("standard input: %w", err)
	}
	return parseObjects("standard input", data)
}

func readFile(file string) ([]*object, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return parseObjects(file, data)
}

// readPath reads a file, or those of a directory, by read.
func readPath(path string, read func(string) ([]*object, error)) (all []*object, err error) {
	err = filepath.WalkDir(path, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && file != path && d.Name() == "status":
			return fs.SkipDir
		case d.IsDir() || (file != path && !isManifest(d.Name())):
			return nil
		}
		objects, err := read(file)
		all = append(all, objects...)
		return err
	})
	return all, err
}

func isManifest(name string) bool {
	return !strings.HasPrefix(name, ".") && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name))
}

func parseObjects(file string, data []byte) ([]*object, error) {
	var all []*object
	docs := yamlutil.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		objects, err := parseObject(file, doc)
		if err != nil {
			return nil, err
		}
		all = append(all, objects...)
	}
}

func parseObject(file string, doc []byte) ([]*object, error) {
	var head struct {
		object `json:",inline"`
		Items  []any `json:"items"`
	}
	if err := yaml.Unmarshal(doc, &head); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	o := head.object
	o.file, o.data = file, doc
	switch {
	case o.Kind == "" && o.Name == "" && len(bytes.TrimSpace(doc)) == 0, isComment(doc):
		return nil, nil
	case strings.HasSuffix(o.Kind, "List") && head.Items != nil:
		var all []*object
		for _, item := range head.Items {
			data, err := yaml.Marshal(item)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			objects, err := parseObject(file, data)
			if err != nil {
				return nil, err
			}
			all = append(all, objects...)
		}
		return all, nil
	case o.Kind == "" || o.Name == "":
		return nil, fmt.Errorf("%s: an object without kind or metadata.name", file)
	case strings.ContainsAny(o.Kind+o.Namespace+o.Name, "/\x00"):
		return nil, fmt.Errorf("%s: kind, namespace or name can't be a file's: %q %q %q", file, o.Kind,
			o.Namespace, o.Name)
	}
	if o.inNamespace() && o.Namespace == "" {
		o.Namespace = metav1.NamespaceDefault
	}
	o.decode()
	return []*object{&o}, nil
}

// isComment says whether a document says nothing.
func isComment(doc []byte) bool {
	for line := range bytes.Lines(doc) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' && string(line) != "---" {
			return false
		}
	}
	return true
}

// pods returns the objects that are Pods.
func pods(objects []*object) ([]*corev1.Pod, error) {
	var all []*corev1.Pod
	for _, o := range objects {
		if !o.isPod() {
			continue
		}
		if o.fault != nil {
			return nil, o.fault
		}
		pod := o.typed.(*corev1.Pod)
		if err := checkPod(pod); err != nil {
			return nil, fmt.Errorf("%s: %w", o, err)
		}
		all = append(all, pod)
	}
	return all, nil
}

// terminating says whether a pod is being deleted: for pods that send it something. It runs until its object has gone.
func terminating(pod *corev1.Pod) bool { return pod.DeletionTimestamp != nil }

// checkPod refuses names that Kubernetes does, as the lab makes directories of them.
func checkPod(pod *corev1.Pod) error {
	problems := validation.IsDNS1123Subdomain(pod.Name)
	problems = append(problems, validation.IsDNS1123Label(pod.Namespace)...)
	seen := map[string]bool{}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, p := range validation.IsDNS1123Label(c.Name) {
			problems = append(problems, fmt.Sprintf("container %q: %s", c.Name, p))
		}
		if seen[c.Name] {
			problems = append(problems, fmt.Sprintf("container %q is there twice", c.Name))
		}
		seen[c.Name] = true
	}
	if len(pod.Spec.Containers) == 0 {
		problems = append(problems, "no containers")
	}
	if len(problems) > 0 {
		return errors.New(strings.Join(problems, "; "))
	}
	return nil
}

// planNodes reads the Nodes, keeps the addresses that the underlay carries, and numbers them by name. Nodes whose
// addresses are cut are cut in objects too, for the agents to see.
func planNodes(objects []*object, underlay string) ([]NodeState, error) {
	var nodes []NodeState
	for _, o := range objects {
		if !o.isNode() {
			continue
		}
		node := &corev1.Node{}
		if err := yaml.Unmarshal(o.data, node); err != nil {
			return nil, fmt.Errorf("%s: %w", o, err)
		}
		state, err := planNode(node, underlay)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o, err)
		}
		if underlay != UnderlayDual {
			node.TypeMeta = o.TypeMeta
			if o.data, err = yaml.Marshal(node); err != nil {
				return nil, fmt.Errorf("%s: %w", o, err)
			}
		}
		nodes = append(nodes, state)
	}
	slices.SortFunc(nodes, func(a, b NodeState) int { return strings.Compare(a.Name, b.Name) })
	for i := range nodes {
		nodes[i].Index = i + 1
	}
	return nodes, nil
}

func planNode(node *corev1.Node, underlay string) (NodeState, error) {
	s := NodeState{Name: node.Name}
	if s.Name == "world" || s.Name == "fabric" || len(validation.IsDNS1123Subdomain(s.Name)) > 0 {
		return s, errors.New("the lab can't have a node of that name")
	}
	var keep []corev1.NodeAddress
	for _, a := range node.Status.Addresses {
		if a.Type != corev1.NodeInternalIP {
			keep = append(keep, a)
			continue
		}
		addr, err := netip.ParseAddr(a.Address)
		if err != nil {
			return s, fmt.Errorf("status.addresses: %w", err)
		}
		if underlay == UnderlayDual || addr.Is4() == (underlay == UnderlayIPv4) {
			s.Addresses = append(s.Addresses, addr)
			keep = append(keep, a)
		}
	}
	node.Status.Addresses = keep
	if len(s.Addresses) == 0 {
		return s, fmt.Errorf("status.addresses: no InternalIP for an underlay of %s", underlay)
	}
	cidrs := node.Spec.PodCIDRs
	if len(cidrs) == 0 && node.Spec.PodCIDR != "" {
		cidrs = []string{node.Spec.PodCIDR}
	}
	for _, c := range cidrs {
		p, err := netip.ParsePrefix(c)
		if err != nil {
			return s, fmt.Errorf("spec.podCIDRs: %w", err)
		}
		s.PodCIDRs = append(s.PodCIDRs, p)
	}
	return s, nil
}
