// Command build builds Myelin's programs for each platform and makes an image of them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"myelin/chart"
	"myelin/install/image"
)

func main() {
	var o options
	flag.StringVar(&o.out, "o", "bin/image", "folder to write to")
	flag.StringVar(&o.version, "version", "", "version of the programs (default: of git)")
	flag.StringVar(&o.arch, "arch", "amd64,arm64", "platforms, as Go names them")
	flag.StringVar(&o.push, "push", "",
		"registry's repository to send it to, such as registry.example.org/network/myelin")
	flag.BoolVar(&o.insecure, "insecure", false, "the registry speaks HTTP without TLS")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := o.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "build:", err)
		os.Exit(1)
	}
}

type options struct {
	out, version, arch, push string
	insecure                 bool
}

func (o *options) run(ctx context.Context) error {
	if flag.NArg() > 0 {
		return fmt.Errorf("unknown argument %q", flag.Arg(0))
	}
	if o.version == "" {
		out, err := exec.CommandContext(ctx, "git", "describe", "--tags", "--always", "--dirty").Output()
		if err != nil {
			return fmt.Errorf("ask git for a version: %w", err)
		}
		o.version = strings.TrimSpace(string(out))
	}
	tag := chart.Version(o.version)
	ref, err := o.ref(tag)
	if err != nil {
		return err
	}
	var all []*image.Image
	for arch := range strings.SplitSeq(o.arch, ",") {
		p := image.Platform{Arch: arch, Dir: filepath.Join(o.out, "linux-"+arch)}
		if err := o.build(ctx, p); err != nil {
			return err
		}
		one, err := image.Build(p, tag)
		if err != nil {
			return err
		}
		all = append(all, one)
	}
	if err := image.Write(o.out, all, ref); err != nil {
		return err
	}
	digest, err := image.Index(all).Digest()
	if err != nil {
		return err
	}
	archive, err := image.WriteChart(o.out, o.repository(), tag)
	if err != nil {
		return err
	}
	fmt.Printf("%s\n%s %s\n", archive, ref, digest) // scripts read the last line
	if o.push == "" {
		return nil
	}
	_, err = image.Push(ctx, all, ref, remote.WithAuthFromKeychain(authn.DefaultKeychain))
	return err
}

// repository is the image's, as charts name it.
func (o *options) repository() string {
	if o.push != "" {
		return o.push
	}
	return "myelin"
}

func (o *options) ref(tag string) (name.Tag, error) {
	opts := []name.Option{}
	if o.insecure {
		opts = append(opts, name.Insecure)
	}
	ref, err := name.NewTag(o.repository()+":"+tag, opts...)
	if err != nil {
		return ref, errors.Join(fmt.Errorf("-push %s", o.push), err)
	}
	return ref, nil
}

// build compiles the programs, static and without paths of this machine.
func (o *options) build(ctx context.Context, p image.Platform) error {
	args := []string{"build", "-trimpath", "-ldflags", "-s -w -X main.version=" + o.version, "-o", p.Dir + "/"}
	for _, program := range image.Programs() {
		args = append(args, "./cmd/"+program)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+p.Arch)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := os.MkdirAll(p.Dir, 0o755); err != nil {
		return fmt.Errorf("build for %s: %w", p.Arch, err)
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build for %s: %w", p.Arch, err)
	}
	return nil
}
