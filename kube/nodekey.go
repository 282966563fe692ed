package kube

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"myelin/cluster"
)

// PublishKey writes a node's public key of WireGuard into its CiliumNode, from where the other nodes have it, and the
// one that it changes to; empty: none.
func (s *Source) PublishKey(ctx context.Context, node, key, next string) error {
	annotations := map[string]any{cluster.WireGuardAnnotation: key, cluster.NextWireGuardAnnotation: nil}
	if next != "" {
		annotations[cluster.NextWireGuardAnnotation] = next
	}
	return s.annotate(ctx, node, annotations)
}

// PublishIPsec writes what other nodes derive the keys of IPsec from into the node's CiliumNode.
func (s *Source) PublishIPsec(ctx context.Context, node, value string) error {
	return s.annotate(ctx, node, map[string]any{cluster.IPsecAnnotation: value})
}

// annotate sets annotations; nil removes one.
func (s *Source) annotate(ctx context.Context, node string, annotations map[string]any) error {
	client, err := s.Server.Client()
	if err != nil {
		return err
	}
	part := map[string]any{"metadata": map[string]any{"annotations": annotations}}
	if err := client.Merge(ctx, "/apis/cilium.io/v2/ciliumnodes/"+node, part, nil); err != nil {
		return fmt.Errorf("write annotations of CiliumNode %s (%s): %w", node,
			strings.Join(slices.Sorted(maps.Keys(annotations)), ", "), err)
	}
	return nil
}
