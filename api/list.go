package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"

	apiv1 "myelin/api/v1"
)

// List asks an agent for a table, and puts the parts of the answer together. Errors are those of gRPC.
func List(ctx context.Context, client apiv1.AgentClient, r *apiv1.ListRequest) (*apiv1.ListResponse, error) {
	parts, err := client.List(ctx, r)
	if err != nil {
		return nil, err
	}
	all := &apiv1.ListResponse{}
	var objects [][]byte
	for {
		part, err := parts.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		all.Columns = append(all.Columns, part.GetColumns()...)
		all.Rows = append(all.Rows, part.GetRows()...)
		all.LeftOut += part.GetLeftOut()
		if inner := bytes.TrimSuffix(bytes.TrimPrefix(part.GetJson(), []byte("[")), []byte("]")); len(inner) > 0 {
			objects = append(objects, inner)
		}
	}
	if r.GetJson() {
		all.Json = slices.Concat([]byte("["), bytes.Join(objects, []byte(",")), []byte("]"))
	}
	return all, nil
}
