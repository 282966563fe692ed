package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"myelin/chart"
)

// WriteChart writes the Helm chart that names an image as an archive into dir, and returns its path. The image's
// tag is the chart's version. The same chart makes the same bytes.
func WriteChart(dir, repository, tag string) (path string, err error) {
	files, err := chart.Files(tag)
	if err != nil {
		return "", fmt.Errorf("make chart: %w", err)
	}
	const values, own = "values.yaml", "\n  repository: myelin\n"
	if bytes.Count(files[values], []byte(own)) != 1 {
		return "", fmt.Errorf("make chart: %s has not one line%q", values, own)
	}
	files[values] = bytes.Replace(files[values], []byte(own), []byte("\n  repository: "+repository+"\n"), 1)
	var archive bytes.Buffer
	zip := gzip.NewWriter(&archive)
	w := tar.NewWriter(zip)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		h := tar.Header{
			Name: "myelin/" + name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(files[name])),
			Format: tar.FormatUSTAR,
		}
		if err := w.WriteHeader(&h); err != nil {
			return "", fmt.Errorf("make chart: %w", err)
		}
		if _, err := w.Write(files[name]); err != nil {
			return "", fmt.Errorf("make chart: %w", err)
		}
	}
	if err := w.Close(); err != nil {
		return "", fmt.Errorf("make chart: %w", err)
	}
	if err := zip.Close(); err != nil {
		return "", fmt.Errorf("make chart: %w", err)
	}
	path = filepath.Join(dir, "myelin-"+tag+".tgz")
	if err := os.WriteFile(path, archive.Bytes(), 0o644); err != nil {
		return "", fmt.Errorf("write chart: %w", err)
	}
	return path, nil
}
