package operator

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"myelin/kube/crd"
)

// define makes the definitions of kinds what this version has of them. Those of a
// later version stay.
func (o *Operator) define(ctx context.Context) error {
	cilium, err := DetectCilium(ctx, o.client)
	if err != nil {
		return err
	}
	if cilium != nil && !o.MigrateFromCilium {
		return fmt.Errorf("definitions stay as they are: %s\n%s", cilium, cilium.Steps())
	}
	objects, err := crd.Objects()
	if err != nil {
		return err
	}
	var errs []error
	for _, object := range objects {
		errs = append(errs, o.defineOne(ctx, object))
	}
	return errors.Join(errs...)
}

func (o *Operator) defineOne(ctx context.Context, object map[string]any) error {
	meta, ok := object["metadata"].(map[string]any)
	name, _ := meta["name"].(string)
	if !ok || name == "" {
		return errors.New("a definition has no name")
	}
	resource := definitionsResource()
	var have struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
	}
	err := o.client.Get(ctx, resource.Path("", name), &have)
	switch {
	case apierrors.IsNotFound(err):
		if err := o.client.Create(ctx, resource.Path("", ""), object, nil); err != nil {
			return fmt.Errorf("create the definition: %w", err)
		}
		o.Log.Info("a kind is defined", "definition", name, "version", crd.Version)
		return nil
	case err != nil:
		return fmt.Errorf("look at the definition: %w", err)
	}
	before, ours := have.Metadata.Labels[crd.VersionLabel]
	if ours && !crd.Newer(crd.Version, before) {
		if before != crd.Version {
			o.Log.Warn("a definition is of a later version, and stays", "definition", name, "version", before, "ours",
				crd.Version)
		}
		return nil
	}
	// Of a version that has been replaced meanwhile the server says so.
	meta["resourceVersion"] = have.Metadata.ResourceVersion
	if err := o.client.Put(ctx, resource.Path("", name), object, nil); err != nil {
		return fmt.Errorf("replace the definition: %w", err)
	}
	o.Log.Info("a definition is replaced", "definition", name, "before", before, "version", crd.Version)
	return nil
}
