// Command image makes Purser's container image as an OCI layout, without a container engine. It
// is run in the root of the repository. The image has the static program, the roots of public
// certificate authorities and an unprivileged user, and nothing else: no shell and no
// PostgreSQL. The same sources, version and time give the same bytes.
//
// It is a module of its own, so that the registry doesn't depend on what it needs.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// options say what to make.
type options struct {
	out       string    // directory of the layout; it is replaced
	version   string    // of the release, as `purser version` prints it
	platforms []string  // such as linux/amd64
	binary    string    // a program to take instead of building one; for a single platform
	created   time.Time // of the image and of all files in it
}

func main() {
	o := options{}
	flag.StringVar(&o.out, "o", "bin/image", "write the OCI layout into this `directory`, which is replaced")
	flag.StringVar(&o.version, "version", "", "the release's `version`")
	platforms := flag.String("platform", "linux/amd64,linux/arm64", "make images for these `platforms`")
	flag.StringVar(&o.binary, "binary", "", "take this static `program` instead of building one, for the platform of this machine alone")
	flag.Parse()
	o.platforms = strings.Split(*platforms, ",")
	if o.binary != "" {
		o.platforms = []string{"linux/" + runtime.GOARCH}
	}
	// https://reproducible-builds.org/specs/source-date-epoch/
	seconds, err := strconv.ParseInt(cmp.Or(os.Getenv("SOURCE_DATE_EPOCH"), "0"), 10, 64)
	if err == nil {
		o.created = time.Unix(seconds, 0).UTC()
		err = run(o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(o options) error {
	index := mutate.Annotations(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), o.annotations()).(v1.ImageIndex)
	for _, name := range o.platforms {
		platform, err := v1.ParsePlatform(name)
		if err != nil {
			return fmt.Errorf("platform %s: %w", name, err)
		}
		image, err := o.image(platform)
		if err != nil {
			return fmt.Errorf("the image for %s: %w", name, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: platform}})
	}
	if err := os.RemoveAll(o.out); err != nil {
		return err
	}
	dir, err := layout.Write(o.out, empty.Index)
	if err != nil {
		return err
	}
	tag := map[string]string{"org.opencontainers.image.ref.name": cmp.Or(o.version, "latest")}
	if err := dir.AppendIndex(index, layout.WithAnnotations(tag)); err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	fmt.Printf("%s: %s for %s\n", o.out, digest, strings.Join(o.platforms, ", "))
	return nil
}

// annotations are the labels of each image and the annotations of the index.
func (o options) annotations() map[string]string {
	a := map[string]string{
		"org.opencontainers.image.title":       "Purser",
		"org.opencontainers.image.description": "An OCI container registry",
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.created":     o.created.Format(time.RFC3339),
	}
	if o.version != "" {
		a["org.opencontainers.image.version"] = o.version
	}
	return a
}

// image makes the image for one platform. Its first layer is the same in all versions.
func (o options) image(platform *v1.Platform) (v1.Image, error) {
	program, err := o.program(platform)
	if err != nil {
		return nil, err
	}
	base, err := baseFiles()
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, part := range []struct {
		comment string
		files   []file
		time    time.Time
	}{
		{"certificate authorities and user", base, time.Unix(0, 0)},
		{"purser", []file{{name: "usr/bin/purser", mode: 0o755, content: program}}, o.created},
	} {
		layer, err := layerOf(part.files, part.time)
		if err != nil {
			return nil, err
		}
		image, err = mutate.Append(image, mutate.Addendum{Layer: layer, MediaType: types.OCILayer,
			History: v1.History{Created: v1.Time{Time: o.created}, CreatedBy: "tools/image", Comment: part.comment}})
		if err != nil {
			return nil, err
		}
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Variant = platform.OS, platform.Architecture, platform.Variant
	config.Created = v1.Time{Time: o.created}
	config.Config = v1.Config{
		User:       user + ":" + user,
		Entrypoint: []string{"/usr/bin/purser"},
		Cmd:        []string{"serve"},
		WorkingDir: home,
		// In a container other machines are meant to reach the addresses; so clients log in.
		Env: []string{"PATH=/usr/bin", "HOME=" + home, "PURSER_DATA_DIR=" + home,
			"PURSER_HTTP_ADDR=0.0.0.0:5000", "PURSER_HTTP_DEBUG_ADDR=0.0.0.0:5001"},
		ExposedPorts: map[string]struct{}{"5000/tcp": {}, "5001/tcp": {}},
		Volumes:      map[string]struct{}{home: {}},
		Labels:       o.annotations(),
		StopSignal:   "SIGTERM",
	}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return nil, err
	}
	return mutate.Annotations(image, maps.Clone(o.annotations())).(v1.Image), nil
}

// program returns the program for the platform: the given one, or one that it builds. A built
// one needs no library and no files for time zones.
func (o options) program(platform *v1.Platform) ([]byte, error) {
	if o.binary != "" {
		return os.ReadFile(o.binary)
	}
	dir, err := os.MkdirTemp("", "purser-image-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "purser")
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-tags", "timetzdata",
		"-ldflags", "-s -w -X main.version="+o.version, "-o", path, "./cmd/purser")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off", "GOOS="+platform.OS, "GOARCH="+platform.Architecture)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build: %w\n%s", err, out)
	}
	return os.ReadFile(path)
}
