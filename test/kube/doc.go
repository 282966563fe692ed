// Package kube tests an agent that reads its cluster from a real Kubernetes API
// server.
package kube
