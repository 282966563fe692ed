package kube

import (
	"context"
	"fmt"

	"myelin/cluster"
)

// PublishKey writes a node's public key of WireGuard into its CiliumNode, from where the other nodes have it.
func (s *Source) PublishKey(ctx context.Context, node, key string) error {
	return s.annotate(ctx, node, cluster.WireGuardAnnotation, key)
}

// PublishIPsec writes what other nodes derive the keys of IPsec from into the node's CiliumNode.
func (s *Source) PublishIPsec(ctx context.Context, node, value string) error {
	return s.annotate(ctx, node, cluster.IPsecAnnotation, value)
}

func (s *Source) annotate(ctx context.Context, node, annotation, value string) error {
	client, err := s.Server.Client()
	if err != nil {
		return err
	}
	part := map[string]any{"metadata": map[string]any{"annotations": map[string]string{annotation: value}}}
	if err := client.Merge(ctx, "/apis/cilium.io/v2/ciliumnodes/"+node, part, nil); err != nil {
		return fmt.Errorf("write the annotation %s of CiliumNode %s: %w", annotation, node, err)
	}
	return nil
}
