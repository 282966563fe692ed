package apiserver

import (
	"context"
	"net/url"
	"os"

	corev1 "k8s.io/api/core/v1"
)

// AgentNamespace is where the DaemonSet of agents is unless an installation says otherwise.
const AgentNamespace = "kube-system"

// agentLabels select the pods of the DaemonSet.
const agentLabels = "k8s-app=myelin"

// Agent is the agent's pod of a node.
type Agent struct {
	Node, Namespace, Pod string
	// Running reports whether a command can be run in the pod.
	Running bool
}

// Agents lists the agents' pods in a namespace, in the order of the API server.
func (s *Server) Agents(ctx context.Context, namespace string) ([]Agent, error) {
	var list corev1.PodList
	if err := s.Get(ctx, "/api/v1/namespaces/"+namespace+"/pods?labelSelector="+url.QueryEscape(agentLabels),
		&list); err != nil {
		return nil, err
	}
	var agents []Agent
	for i := range list.Items {
		p := &list.Items[i]
		agents = append(agents, Agent{
			Node: p.Spec.NodeName, Namespace: p.Namespace, Pod: p.Name, Running: p.Status.Phase == corev1.PodRunning,
		})
	}
	return agents, nil
}

// Run runs a command of the program in an agent's pod, and returns what it printed, also where it failed.
func (s *Server) Run(ctx context.Context, a Agent, args ...string) (string, error) {
	return s.Exec(ctx, a.Namespace, a.Pod, append([]string{"/myelin"}, args...)...)
}

// Secrets are the credentials that the server is asked with, so that they can be kept out of what is written for
// others.
func (s *Server) Secrets() (list []string) {
	for _, text := range []string{s.config.BearerToken, s.config.Password, string(s.config.KeyData)} {
		if text != "" {
			list = append(list, text)
		}
	}
	for _, file := range []string{s.config.BearerTokenFile, s.config.KeyFile} {
		if data, err := os.ReadFile(file); file != "" && err == nil {
			list = append(list, string(data))
		}
	}
	return list
}
