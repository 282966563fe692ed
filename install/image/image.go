// Package image makes Myelin's OCI image of built programs, without a container engine, and the same bytes each time.
package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/buildinfo"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Programs are the files of an image, by their names in Platform.Dir.
func Programs() []string { return []string{"myelin", "myelin-cni"} }

// sbomType is the media type of the list of what programs are made of, in SPDX's JSON.
const sbomType = types.MediaType("application/spdx+json")

// user is the user and group of the image's containers, unless the pod sets them: the number that images without users
// agree on.
const user = "65532:65532"

// Platform is one variant of an image.
type Platform struct {
	Arch string // as Go names it: amd64, arm64
	Dir  string // has the programs
}

// Image is a variant that is made.
type Image struct {
	Platform
	Image v1.Image
	// SBOM is what the programs are made of, and Referrer the artifact that has it and refers to the image.
	SBOM     []byte
	Referrer v1.Image
}

// Build makes the variant. Times are that of the commit the programs were built from, or the epoch, so that the same
// programs make the same image.
func Build(p Platform, version string) (*Image, error) {
	info, err := buildinfo.ReadFile(filepath.Join(p.Dir, Programs()[0]))
	if err != nil {
		return nil, fmt.Errorf("read what the program was built of: %w", err)
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	if settings["GOARCH"] != p.Arch || settings["CGO_ENABLED"] != "0" {
		return nil, fmt.Errorf("%s is built for %s with CGO_ENABLED=%s: want %s, static", p.Dir, settings["GOARCH"],
			settings["CGO_ENABLED"], p.Arch)
	}
	when := time.Unix(0, 0).UTC()
	if t, err := time.Parse(time.RFC3339, settings["vcs.time"]); err == nil {
		when = t.UTC()
	}
	layer, err := p.layer(when)
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(mutate.MediaType(empty.Image, types.OCIManifestSchema1), layer)
	if err != nil {
		return nil, fmt.Errorf("make image: %w", err)
	}
	labels := map[string]string{
		"org.opencontainers.image.title":       "myelin",
		"org.opencontainers.image.description": "The network of a Kubernetes cluster in eBPF",
		"org.opencontainers.image.version":     version,
		"org.opencontainers.image.revision":    settings["vcs.revision"],
		"org.opencontainers.image.created":     when.Format(time.RFC3339),
		"org.opencontainers.image.licenses":    "Apache-2.0 AND (GPL-2.0-only OR BSD-2-Clause)",
	}
	img, err = mutate.ConfigFile(mutate.ConfigMediaType(img, types.OCIConfigJSON), &v1.ConfigFile{
		Architecture: p.Arch, OS: "linux", Created: v1.Time{Time: when},
		RootFS:  v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{must(layer.DiffID())}},
		History: []v1.History{{Created: v1.Time{Time: when}, CreatedBy: "myelin/install/image"}},
		Config: v1.Config{Entrypoint: []string{"/myelin"}, User: user, WorkingDir: "/", Labels: labels,
			Env: []string{"PATH=/"}},
	})
	if err != nil {
		return nil, fmt.Errorf("make image: %w", err)
	}
	out := &Image{Platform: p, Image: mutate.Annotations(img, labels).(v1.Image)}
	if out.SBOM, err = sbom(p, version, when); err != nil {
		return nil, err
	}
	out.Referrer, err = out.referrer()
	return out, err
}

// must is for values of a layer that is in memory.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// layer has the programs, and what a runtime mounts into: namespaces of pods are told as /var/run/netns.
func (p Platform) layer(when time.Time) (v1.Layer, error) {
	var raw bytes.Buffer
	w := tar.NewWriter(&raw)
	entry := func(h tar.Header, data []byte) error {
		h.ModTime, h.Size, h.Format = when, int64(len(data)), tar.FormatUSTAR
		if err := w.WriteHeader(&h); err != nil {
			return err
		}
		_, err := w.Write(data)
		return err
	}
	for _, h := range []tar.Header{
		{Name: "etc/", Typeflag: tar.TypeDir, Mode: 0o755}, {Name: "run/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}, {Name: "var/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "var/run", Typeflag: tar.TypeSymlink, Linkname: "/run", Mode: 0o777},
	} {
		if err := entry(h, nil); err != nil {
			return nil, fmt.Errorf("make layer: %w", err)
		}
	}
	for _, name := range Programs() {
		data, err := os.ReadFile(filepath.Join(p.Dir, name))
		if err == nil {
			err = entry(tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755}, data)
		}
		if err != nil {
			return nil, fmt.Errorf("make layer: %w", err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("make layer: %w", err)
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(raw.Bytes())), nil }
	layer, err := tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer),
		tarball.WithCompressionLevel(gzip.BestCompression), tarball.WithCompressedCaching)
	if err != nil {
		return nil, fmt.Errorf("make layer: %w", err)
	}
	return layer, nil
}

// referrer is an artifact that refers to the image (OCI distribution 1.1).
func (i *Image) referrer() (v1.Image, error) {
	img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	img = mutate.ConfigMediaType(img, sbomType)
	img, err := mutate.Append(img, mutate.Addendum{
		Layer: static.NewLayer(i.SBOM, sbomType), MediaType: sbomType,
		Annotations: map[string]string{"org.opencontainers.image.title": "myelin.spdx.json"},
	})
	if err != nil {
		return nil, fmt.Errorf("make SBOM's artifact: %w", err)
	}
	subject, err := partial.Descriptor(i.Image)
	if err != nil {
		return nil, fmt.Errorf("make SBOM's artifact: %w", err)
	}
	subject.Platform, subject.Annotations = nil, nil
	return mutate.Subject(img, *subject).(v1.Image), nil
}

// Index is the image of all variants.
func Index(all []*Image) v1.ImageIndex {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, i := range all {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: i.Image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: i.Arch}},
		})
	}
	return index
}
