// Package labtest is the third ring of tests: nodes and pods made of network
// namespaces, real agents, real CNI calls, real traffic.
package labtest
