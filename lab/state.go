package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// State is lab.json: what Up decided and everybody after it needs.
type State struct {
	Options Options     `json:"options"`
	Created time.Time   `json:"created"`
	Nodes   []NodeState `json:"nodes"`
	World   WorldState  `json:"world"`
}

// NodeState is one node of State.
type NodeState struct {
	Name      string         `json:"name"`
	Index     int            `json:"index"` // from 1; names its port on the fabric and its MAC
	Addresses []netip.Addr   `json:"addresses"`
	PodCIDRs  []netip.Prefix `json:"podCIDRs"`
}

// WorldState is where the world is on the fabric.
type WorldState struct {
	Addresses []netip.Prefix `json:"addresses,omitempty"` // on the fabric; the nodes' default gateways
	Outside   []netip.Addr   `json:"outside,omitempty"`
}

// PodState is what the supervisor knows of a pod. It is written before the act it announces, so that a supervisor that
// dies in between leaves a trace to clean up by.
type PodState struct {
	Namespace   string           `json:"namespace"`
	Name        string           `json:"name"`
	UID         string           `json:"uid"`
	Node        string           `json:"node"`
	Hash        string           `json:"hash"` // of the spec that runs
	HostNetwork bool             `json:"hostNetwork,omitempty"`
	Netns       string           `json:"netns"`
	ContainerID string           `json:"containerID,omitempty"`
	Conflist    []byte           `json:"conflist,omitempty"` // as it was at ADD; DEL gets the same
	Ready       bool             `json:"ready"`              // namespace and network are complete
	Phase       string           `json:"phase"`              // as in Kubernetes: Pending, Running, Succeeded, Failed
	Message     string           `json:"message,omitempty"`
	Terminating bool             `json:"terminating,omitempty"` // it has a deletionTimestamp, and runs on until its object goes
	Addresses   []netip.Addr     `json:"addresses,omitempty"`
	Started     time.Time        `json:"started"`
	Owner       *OwnerReference  `json:"owner,omitempty"` // what controls it
	Containers  []ContainerState `json:"containers,omitempty"`
}

// OwnerReference is as in Kubernetes.
type OwnerReference = metav1.OwnerReference

// ContainerState is one container of PodState.
type ContainerState struct {
	Name     string  `json:"name"`
	Init     bool    `json:"init,omitempty"`
	Process  Process `json:"process"`
	Restarts int     `json:"restarts"`
	Exited   bool    `json:"exited,omitempty"`
	ExitCode int     `json:"exitCode,omitempty"` // 128 + signal when killed by one; 255 when it could not be learnt
	Message  string  `json:"message,omitempty"`
	// LastExitCode is that of the process before this one, if the container was restarted.
	LastExitCode int `json:"lastExitCode,omitempty"`
}

// key is "namespace/name".
func (s *PodState) key() string { return s.Namespace + "/" + s.Name }

// settled says whether waiting longer would change nothing.
func (s *PodState) settled() bool {
	return s.Phase != "Pending" || (s.Ready && s.Message != "")
}

func (l *Lab) podStatePath(namespace, name string) string {
	return l.path("pods", shorten(podFile(namespace, name))+".json")
}

// podStates reads all pods, by node, namespace, name.
func (l *Lab) podStates() ([]PodState, error) {
	entries, err := os.ReadDir(l.path("pods"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	var states []PodState
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") {
			continue
		}
		var s PodState
		switch err := readJSON(l.path("pods", e.Name()), &s); {
		case errors.Is(err, os.ErrNotExist): // deleted since
		case err != nil:
			return nil, err
		default:
			states = append(states, s)
		}
	}
	slices.SortFunc(states, func(a, b PodState) int {
		return strings.Compare(a.Node+"\x00"+a.key(), b.Node+"\x00"+b.key())
	})
	return states, nil
}

func readJSON(path string, v any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

func writeJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return writeFile(path, append(data, '\n'))
}

// writeFile replaces a file as a whole. The temporary name has no suffix that a reader of the directory looks for.
func writeFile(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
