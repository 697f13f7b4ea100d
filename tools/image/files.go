package main

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"fmt"
	"io"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

const (
	user = "65532" // id of the unprivileged user and of its group
	uid  = 65532
	home = "/var/lib/purser"
)

// file is a file or, if its name ends in a slash, a directory of an image.
type file struct {
	name    string // without a leading slash
	mode    int64
	owner   int
	content []byte
}

// baseFiles returns what the program needs around it.
func baseFiles() ([]file, error) {
	var roots bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue // browsers trust only some certificates of it, which a file can't say
		}
		if err := pem.Encode(&roots, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return nil, err
		}
	}
	return []file{
		{name: "etc/passwd", mode: 0o644, content: fmt.Appendf(nil, "root:x:0:0:root:/:/nonexistent\npurser:x:%s:%[1]s:Purser:%s:/nonexistent\n", user, home)},
		{name: "etc/group", mode: 0o644, content: fmt.Appendf(nil, "root:x:0:\npurser:x:%s:\n", user)},
		{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, content: roots.Bytes()},
		{name: "tmp/", mode: 0o1777},
		{name: "var/lib/purser/", mode: 0o750, owner: uid},
	}, nil
}

// layerOf makes a layer of the files and of the directories above them. All have the time `at`.
func layerOf(files []file, at time.Time) (v1.Layer, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	made := map[string]bool{}
	for _, f := range files {
		for i, c := range f.name[:len(f.name)-1] {
			if above := f.name[:i] + "/"; c == '/' && !made[above] {
				made[above] = true
				if err := add(w, file{name: above, mode: 0o755}, at); err != nil {
					return nil, err
				}
			}
		}
		made[f.name] = true
		if err := add(w, f, at); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer))
}

func add(w *tar.Writer, f file, at time.Time) error {
	h := &tar.Header{Name: f.name, Mode: f.mode, Uid: f.owner, Gid: f.owner, Size: int64(len(f.content)), ModTime: at, Typeflag: tar.TypeReg, Format: tar.FormatPAX}
	if strings.HasSuffix(f.name, "/") {
		h.Typeflag = tar.TypeDir
	}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err := w.Write(f.content)
	return err
}
