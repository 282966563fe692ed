package kube

import (
	"context"
	"fmt"

	"myelin/cluster"
)

// PublishKey writes a node's public key of WireGuard into its CiliumNode, from where the other nodes have it, and the
// one that it changes to; empty: none.
func (s *Source) PublishKey(ctx context.Context, node, key, next string) error {
	client, err := s.Server.Client()
	if err != nil {
		return err
	}
	annotations := map[string]any{cluster.WireGuardAnnotation: key, cluster.NextWireGuardAnnotation: nil}
	if next != "" {
		annotations[cluster.NextWireGuardAnnotation] = next
	}
	part := map[string]any{"metadata": map[string]any{"annotations": annotations}}
	if err := client.Merge(ctx, "/apis/cilium.io/v2/ciliumnodes/"+node, part, nil); err != nil {
		return fmt.Errorf("write the annotation %s of CiliumNode %s: %w", cluster.WireGuardAnnotation, node, err)
	}
	return nil
}
