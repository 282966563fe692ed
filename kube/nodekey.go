package kube

import (
	"context"
	"fmt"

	"myelin/cluster"
)

// PublishKey writes a node's public key of WireGuard into its CiliumNode, from where the other nodes have it.
func (s *Source) PublishKey(ctx context.Context, node, key string) error {
	client, err := s.Server.Client()
	if err != nil {
		return err
	}
	part := map[string]any{"metadata": map[string]any{"annotations": map[string]string{
		cluster.WireGuardAnnotation: key,
	}}}
	if err := client.Merge(ctx, "/apis/cilium.io/v2/ciliumnodes/"+node, part, nil); err != nil {
		return fmt.Errorf("write the annotation %s of CiliumNode %s: %w", cluster.WireGuardAnnotation, node, err)
	}
	return nil
}
