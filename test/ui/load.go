package main

import (
	"fmt"
	"math/rand/v2"
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	observerpb "github.com/cilium/cilium/api/v1/observer"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// load is an observer of flows that it makes up.
type load struct {
	observerpb.UnimplementedObserverServer

	rate  int
	begin time.Time
}

// interval is between two bursts of flows.
const interval = 10 * time.Millisecond

// GetFlows sends flows at the rate until the client goes. It knows no filters.
func (l *load) GetFlows(_ *observerpb.GetFlowsRequest, stream observerpb.Observer_GetFlowsServer) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	begin, sent := time.Now(), 0
	random := rand.New(rand.NewPCG(1, 2))
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case now := <-tick.C:
			for due := int(now.Sub(begin).Seconds() * float64(l.rate)); sent < due; sent++ {
				f := newFlow(random, sent, now)
				err := stream.Send(&observerpb.GetFlowsResponse{Time: f.GetTime(), NodeName: f.GetNodeName(),
					ResponseTypes: &observerpb.GetFlowsResponse_Flow{Flow: f}})
				if err != nil {
					return err
				}
			}
		}
	}
}

// Sizes of the cluster whose flows these are.
const (
	namespaces = 5
	workloads  = 8 // of each namespace
	replicas   = 5
	nodes      = 10
)

// newFlow is one between two pods of a namespace, half of them by IPv6. Some of the requests of workload-0 are denied.
func newFlow(random *rand.Rand, i int, now time.Time) *flowpb.Flow {
	namespace := random.IntN(namespaces)
	client := random.IntN(workloads)
	server := (client + 1 + random.IntN(2)) % workloads
	f := &flowpb.Flow{
		Time: timestamppb.New(now), Uuid: fmt.Sprintf("00000000-0000-8000-8000-%012x", i),
		Verdict: flowpb.Verdict_FORWARDED, Type: flowpb.FlowType_L3_L4, IsReply: wrapperspb.Bool(i%2 == 1),
		NodeName: fmt.Sprintf("default/node%d", random.IntN(nodes)), Summary: "TCP Flags: SYN",
		Source:      pod(namespace, client, random.IntN(replicas)),
		Destination: pod(namespace, server, random.IntN(replicas)),
		EventType:   &flowpb.CiliumEventType{Type: 4}, TrafficDirection: flowpb.TrafficDirection_EGRESS,
		IP: &flowpb.IP{IpVersion: flowpb.IPVersion_IPv4, Source: fmt.Sprintf("10.0.%d.%d", namespace, client),
			Destination: fmt.Sprintf("10.0.%d.%d", namespace, server)},
	}
	tcp := &flowpb.TCP{SourcePort: uint32(32768 + i%28000), DestinationPort: 8080, Flags: &flowpb.TCPFlags{SYN: true}}
	if f.GetIsReply().GetValue() {
		tcp.SourcePort, tcp.DestinationPort = tcp.DestinationPort, tcp.SourcePort
		f.Source, f.Destination = f.GetDestination(), f.GetSource()
	}
	f.L4 = &flowpb.Layer4{Protocol: &flowpb.Layer4_TCP{TCP: tcp}}
	if i%4 >= 2 {
		f.IP = &flowpb.IP{IpVersion: flowpb.IPVersion_IPv6, Source: fmt.Sprintf("fd00::%x:%x", namespace, client),
			Destination: fmt.Sprintf("fd00::%x:%x", namespace, server)}
	}
	if client == 0 && i%40 == 0 {
		f.Verdict, f.DropReasonDesc = flowpb.Verdict_DROPPED, flowpb.DropReason_POLICY_DENIED
		f.EventType = &flowpb.CiliumEventType{Type: 1, SubType: 133}
		f.IngressDeniedBy = []*flowpb.Policy{{Kind: "NetworkPolicy", Namespace: "load", Name: "closed"}}
	}
	return f
}

func pod(namespace, workload, replica int) *flowpb.Endpoint {
	ns, name := fmt.Sprintf("namespace-%d", namespace), fmt.Sprintf("workload-%d", workload)
	return &flowpb.Endpoint{
		Namespace: ns, PodName: fmt.Sprintf("%s-5d8f7c9b6-%05d", name, replica),
		Identity: uint32(256 + namespace*workloads + workload), ClusterName: "default",
		Labels:    []string{"k8s:app=" + name, "k8s:io.kubernetes.pod.namespace=" + ns},
		Workloads: []*flowpb.Workload{{Kind: "Deployment", Name: name}},
	}
}
