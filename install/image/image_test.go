package image

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// programs has the smaller of the two programs in the place of both: an image has what it is given.
func programs(t *testing.T, arch string) Platform {
	t.Helper()
	p := Platform{Arch: arch, Dir: t.TempDir()}
	one, err := os.ReadFile(plugin(t, arch))
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range Programs() {
		if err := os.WriteFile(filepath.Join(p.Dir, program), one, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// plugin is a file with myelin-cni for a processor: that of MYELIN_BIN, if it is for this machine's, or it is built.
func plugin(t *testing.T, arch string) string {
	t.Helper()
	if dir := os.Getenv("MYELIN_BIN"); dir != "" && arch == runtime.GOARCH {
		return filepath.Join(dir, "myelin-cni")
	}
	file := filepath.Join(t.TempDir(), "myelin-cni")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", file, "myelin/cmd/myelin-cni")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return file
}

func build(t *testing.T, p Platform) *Image {
	t.Helper()
	i, err := Build(p, "1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func tag(t *testing.T, text string) name.Tag {
	t.Helper()
	ref, err := name.NewTag(text)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

func digest(t *testing.T, of interface{ Digest() (v1.Hash, error) }) string {
	t.Helper()
	h, err := of.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return h.String()
}

// TestImage makes an image, looks into it, and makes it again.
func TestImage(t *testing.T) {
	p := programs(t, "amd64")
	i := build(t, p)
	if again := build(t, p); digest(t, again.Image) != digest(t, i.Image) ||
		digest(t, again.Referrer) != digest(t, i.Referrer) {
		t.Error("made twice of the same programs it differs")
	}
	c, err := i.Image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if c.Architecture != "amd64" || c.Config.Entrypoint[0] != "/myelin" || c.Config.User != user ||
		c.Config.Labels["org.opencontainers.image.version"] != "1.2.3" {
		t.Errorf("config %+v", c)
	}
	files := map[string]*tar.Header{}
	r := tar.NewReader(mutate.Extract(i.Image))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimSuffix(h.Name, "/")] = h
		if h.Uid != 0 || !h.ModTime.Equal(c.Created.Time) {
			t.Errorf("%s is of %d, %s", h.Name, h.Uid, h.ModTime)
		}
	}
	for _, program := range Programs() {
		if h := files[program]; h == nil || h.Mode != 0o755 || h.Size < 1<<20 {
			t.Errorf("%s: %+v", program, h)
		}
	}
	if h := files["var/run"]; h == nil || h.Linkname != "/run" {
		t.Errorf("/var/run: %+v", h)
	}
	if len(files) != 7 {
		t.Errorf("%d files", len(files))
	}
}

// TestSBOM has the modules that the program imports, with what go.mod says of one.
func TestSBOM(t *testing.T) {
	var d document
	if err := json.Unmarshal(build(t, programs(t, "amd64")).SBOM, &d); err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	names, ids := map[string]spdxPackage{}, map[string]bool{}
	for _, p := range d.Packages {
		names[p.Name] = p
		if ids[p.ID] {
			t.Errorf("%s stands twice", p.ID)
		}
		ids[p.ID] = true
	}
	grpc := names["google.golang.org/grpc"]
	if !strings.Contains(string(mod), grpc.Name+" "+grpc.Version) ||
		grpc.Refs[0].Locator != "pkg:golang/"+grpc.Name+"@"+grpc.Version {
		t.Errorf("gRPC: %+v", grpc)
	}
	if names["stdlib"].Version == "" || names["myelin-cni"].Checksums == nil || len(names) < 8 {
		t.Errorf("packages %v", names)
	}
	for _, r := range d.Relationships {
		if r.From != d.ID && !ids[r.From] || !ids[r.To] {
			t.Errorf("a relationship with what is not there: %+v", r)
		}
	}
}

// TestWrite writes both platforms, and reads what a runtime and a registry's tools would.
func TestWrite(t *testing.T) {
	all, dir, ref := []*Image{build(t, programs(t, "amd64")), build(t, programs(t, "arm64"))}, t.TempDir(), tag(t,
		"myelin:1.2.3")
	for range 2 {
		if err := Write(dir, all, ref); err != nil {
			t.Fatal(err)
		}
	}
	index, err := layout.ImageIndexFromPath(filepath.Join(dir, "oci"))
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index, validate.Fast); err != nil {
		t.Error(err)
	}
	m, err := index.IndexManifest()
	if err != nil || len(m.Manifests) != 3 {
		t.Fatal(m, err)
	}
	img, err := tarball.ImageFromPath(filepath.Join(dir, "myelin-arm64.tar"), &ref)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := img.ConfigFile(); err != nil || c.Architecture != "arm64" {
		t.Error(c, err)
	}
}

// TestPush sends it to a registry, and asks there for what refers to it.
func TestPush(t *testing.T) {
	s := httptest.NewServer(registry.New(registry.WithReferrersSupport(true),
		registry.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo))))
	defer s.Close()
	one := build(t, programs(t, "amd64"))
	ref := tag(t, strings.TrimPrefix(s.URL, "http://")+"/network/myelin:1.2.3")
	h, err := Push(t.Context(), []*Image{one}, ref)
	if err != nil {
		t.Fatal(err)
	}
	got, err := remote.Image(ref, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: "amd64"}))
	if err != nil || digest(t, got) != digest(t, one.Image) {
		t.Fatal(err)
	}
	index, err := remote.Index(ref)
	if err != nil || digest(t, index) != h.String() {
		t.Fatal(err)
	}
	refers, err := remote.Referrers(ref.Context().Digest(digest(t, one.Image)))
	if err != nil {
		t.Fatal(err)
	}
	m, err := refers.IndexManifest()
	if err != nil || len(m.Manifests) != 1 || m.Manifests[0].ArtifactType != string(sbomType) {
		t.Errorf("referrers %+v, %v", m, err)
	}
}

// TestRefused has programs of another platform.
func TestRefused(t *testing.T) {
	p := programs(t, "amd64")
	p.Arch = "arm64"
	if _, err := Build(p, "1.2.3"); err == nil || !strings.Contains(err.Error(), "is built for amd64") {
		t.Error(err)
	}
	if _, err := Build(Platform{Arch: "amd64", Dir: t.TempDir()}, "1.2.3"); err == nil {
		t.Error("made without programs")
	}
}
