// Package clustertest runs a real Kubernetes cluster with Myelin for its network: kubelets, containerd, the upstream
// test suite.
//
// The scripts beside it make the cluster; README.md says how.
package clustertest
