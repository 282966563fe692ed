package image

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Write puts what was built into dir, in the place of what is there: oci/, a layout with the index, its images and
// their SBOMs' artifacts; myelin-ARCH.tar, an archive that `ctr image import` and `docker load` take, under ref;
// myelin-ARCH.spdx.json.
func Write(dir string, all []*Image, ref name.Tag) error {
	if err := os.RemoveAll(filepath.Join(dir, "oci")); err != nil {
		return fmt.Errorf("write image: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write image: %w", err)
	}
	named := layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": ref.TagStr()})
	at, err := layout.Write(filepath.Join(dir, "oci"), mutate.IndexMediaType(empty.Index, types.OCIImageIndex))
	if err == nil {
		err = at.AppendIndex(Index(all), named)
	}
	if err != nil {
		return fmt.Errorf("write image: %w", err)
	}
	for _, i := range all {
		err := at.AppendImage(i.Referrer)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "myelin-"+i.Arch+".spdx.json"), i.SBOM, 0o644)
		}
		if err == nil {
			err = tarball.WriteToFile(filepath.Join(dir, "myelin-"+i.Arch+".tar"), ref, i.Image)
		}
		if err != nil {
			return fmt.Errorf("write image: %w", err)
		}
	}
	return nil
}

// Push sends the index, its images and what refers to them to a registry, and returns the index's digest.
func Push(ctx context.Context, all []*Image, ref name.Tag, options ...remote.Option) (v1.Hash, error) {
	options = append(options, remote.WithContext(ctx))
	index := Index(all)
	if err := remote.WriteIndex(ref, index, options...); err != nil {
		return v1.Hash{}, fmt.Errorf("push to %s: %w", ref, err)
	}
	for _, i := range all {
		digest, err := i.Referrer.Digest()
		if err == nil {
			err = remote.Write(ref.Context().Digest(digest.String()), i.Referrer, options...)
		}
		if err != nil {
			return v1.Hash{}, fmt.Errorf("push SBOM to %s: %w", ref, err)
		}
	}
	return index.Digest()
}
